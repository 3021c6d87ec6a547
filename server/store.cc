// SQLite behind Store: statements are prepared once and kept.
#include "server/store.h"

#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "kernels/status.h"

namespace ebb {
namespace {

// What version 2 has beyond version 1.
constexpr char kSchema2[] = R"sql(
CREATE TABLE job_plans(
  job_id TEXT NOT NULL PRIMARY KEY,
  plans BLOB NOT NULL) WITHOUT ROWID;
)sql";

constexpr char kSchema1[] = R"sql(
CREATE TABLE jobs(
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  state INTEGER NOT NULL,
  job BLOB NOT NULL,
  spec BLOB NOT NULL,
  plan BLOB NOT NULL);
CREATE INDEX jobs_by_state ON jobs(state, number);
CREATE TABLE request_ids(
  request_id TEXT NOT NULL PRIMARY KEY,
  job_id TEXT NOT NULL,
  spec BLOB NOT NULL);
CREATE INDEX request_ids_by_job ON request_ids(job_id);
CREATE TABLE attempts(
  job_id TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  launch_micros INTEGER NOT NULL,
  ended INTEGER NOT NULL,
  PRIMARY KEY(job_id, attempt)) WITHOUT ROWID;
CREATE TABLE ranks(
  job_id TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  rank INTEGER NOT NULL,
  sequence INTEGER NOT NULL,
  started INTEGER NOT NULL,
  stepped INTEGER NOT NULL,
  finished BLOB,
  PRIMARY KEY(job_id, attempt, rank)) WITHOUT ROWID;
CREATE TABLE steps(
  job_id TEXT NOT NULL,
  step INTEGER NOT NULL,
  rank INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  report BLOB NOT NULL,
  PRIMARY KEY(job_id, step, rank)) WITHOUT ROWID;
CREATE TABLE evals(
  job_id TEXT NOT NULL,
  step INTEGER NOT NULL,
  report BLOB NOT NULL,
  PRIMARY KEY(job_id, step)) WITHOUT ROWID;
CREATE TABLE checkpoints(
  job_id TEXT NOT NULL,
  step INTEGER NOT NULL,
  report BLOB NOT NULL,
  PRIMARY KEY(job_id, step)) WITHOUT ROWID;
CREATE TABLE events(
  job_id TEXT NOT NULL,
  sequence INTEGER NOT NULL,
  event BLOB NOT NULL,
  PRIMARY KEY(job_id, sequence)) WITHOUT ROWID;
)sql";

// In the order in which a damaged file is copied: jobs first.
constexpr const char* kTables[] = {"jobs",        "request_ids", "attempts",
                                   "ranks",       "steps",       "evals",
                                   "checkpoints", "events",      "job_plans"};

absl::Status SqliteStatus(int code, sqlite3* db, absl::string_view what) {
  const std::string message =
      absl::StrCat("store: ", what, ": ",
                   db != nullptr ? sqlite3_errmsg(db) : sqlite3_errstr(code));
  switch (code & 0xff) {
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(message);
    case SQLITE_CONSTRAINT:
      return absl::AlreadyExistsError(message);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(message);
    default:
      return absl::InternalError(message);
  }
}

// A prepared statement in use; reset when it goes away.
class Statement {
 public:
  explicit Statement(sqlite3_stmt* statement) : statement_(statement) {}
  ~Statement() {
    sqlite3_reset(statement_);
    sqlite3_clear_bindings(statement_);
  }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  Statement& Text(absl::string_view value) {
    sqlite3_bind_text64(statement_, ++bound_, value.data(), value.size(),
                        SQLITE_TRANSIENT, SQLITE_UTF8);
    return *this;
  }
  Statement& Int(int64_t value) {
    sqlite3_bind_int64(statement_, ++bound_, value);
    return *this;
  }
  Statement& Blob(absl::string_view value) {
    // A null pointer would bind NULL.
    sqlite3_bind_blob64(statement_, ++bound_, value.empty() ? "" : value.data(),
                        value.size(), SQLITE_TRANSIENT);
    return *this;
  }
  Statement& Null() {
    sqlite3_bind_null(statement_, ++bound_);
    return *this;
  }

  // True: a row is there. False: the end.
  absl::StatusOr<bool> Next() {
    const int code = sqlite3_step(statement_);
    if (code == SQLITE_ROW) return true;
    if (code == SQLITE_DONE) return false;
    return SqliteStatus(code, sqlite3_db_handle(statement_),
                        sqlite3_sql(statement_));
  }
  absl::Status Run() { return Next().status(); }

  int64_t GetInt(int column) const {
    return sqlite3_column_int64(statement_, column);
  }
  absl::string_view GetBytes(int column) const {
    const void* data = sqlite3_column_blob(statement_, column);
    const int size = sqlite3_column_bytes(statement_, column);
    return {static_cast<const char*>(data), static_cast<size_t>(size)};
  }
  bool IsNull(int column) const {
    return sqlite3_column_type(statement_, column) == SQLITE_NULL;
  }

 private:
  sqlite3_stmt* statement_;
  int bound_ = 0;
};

template <typename Message>
absl::Status Parse(absl::string_view bytes, absl::string_view what,
                   Message* message) {
  if (message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::OkStatus();
  }
  return absl::DataLossError(
      absl::StrCat("store: a stored ", what, " cannot be read"));
}

// The mutable part of a job.
std::string SerializeJob(const v1::Job& job) {
  v1::Job small = job;
  small.clear_spec();
  small.clear_plan();
  return small.SerializeAsString();
}

}  // namespace

// One connection and its prepared statements.
struct Store::Connection {
  absl::Mutex mutex;
  sqlite3* db ABSL_GUARDED_BY(mutex) = nullptr;
  std::map<const char*, sqlite3_stmt*> statements ABSL_GUARDED_BY(mutex);

  ~Connection() {
    absl::MutexLock lock(&mutex);
    for (const auto& [sql, statement] : statements) sqlite3_finalize(statement);
    if (db != nullptr) sqlite3_close_v2(db);
  }

  absl::Status Open(const std::string& path) {
    absl::MutexLock lock(&mutex);
    // Each connection has a mutex of its own: SQLite needs none.
    int code = sqlite3_open_v2(
        path.c_str(), &db,
        SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
        nullptr);
    if (code != SQLITE_OK) return SqliteStatus(code, db, path);
    sqlite3_extended_result_codes(db, 1);
    sqlite3_busy_timeout(db, 10000);
    EBB_RETURN_IF_ERROR(Execute("PRAGMA journal_mode=WAL"));
    EBB_RETURN_IF_ERROR(Execute("PRAGMA synchronous=FULL"));
    return absl::OkStatus();
  }

  absl::Status Execute(const char* sql) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const int code = sqlite3_exec(db, sql, nullptr, nullptr, nullptr);
    return code == SQLITE_OK ? absl::OkStatus() : SqliteStatus(code, db, sql);
  }

  // The statements of one change, inside its transaction.
  absl::Status Write(const Change& change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // `sql` is a literal: its address is its identity.
  absl::StatusOr<sqlite3_stmt*> Prepare(const char* sql)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    sqlite3_stmt*& statement = statements[sql];
    if (statement == nullptr) {
      const int code = sqlite3_prepare_v3(
          db, sql, -1, SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
      if (code != SQLITE_OK) return SqliteStatus(code, db, sql);
    }
    return statement;
  }

  absl::StatusOr<int64_t> ReadInt(const char* sql)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    EBB_ASSIGN_OR_RETURN(sqlite3_stmt * prepared, Prepare(sql));
    Statement statement(prepared);
    EBB_ASSIGN_OR_RETURN(const bool row, statement.Next());
    return row ? statement.GetInt(0) : 0;
  }
};

namespace {

// Reports the time of one operation when it goes away.
class Timed {
 public:
  Timed(const Store::Observer& observer, const char* operation)
      : observer_(observer), operation_(operation), start_(absl::Now()) {}
  ~Timed() {
    if (observer_) observer_(operation_, absl::Now() - start_);
  }

 private:
  const Store::Observer& observer_;
  const char* operation_;
  absl::Time start_;
};

bool FileExists(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0;
}

int64_t FileBytes(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 ? info.st_size : 0;
}

// Copies every readable row of `table` from one connection to the other, first
// forwards to the first damaged page, then backwards from the end. Returns how
// many.
int64_t CopyRows(sqlite3* from, sqlite3* to, const std::string& table) {
  int64_t copied = 0;
  for (const char* direction : {"ASC", "DESC"}) {
    sqlite3_stmt* select = nullptr;
    const std::string key =
        table == "jobs" || table == "request_ids" ? "rowid" : "job_id";
    const std::string sql = absl::StrCat("SELECT * FROM ", table, " ORDER BY ",
                                         key, " ", direction);
    if (sqlite3_prepare_v2(from, sql.c_str(), -1, &select, nullptr) !=
        SQLITE_OK) {
      continue;
    }
    const int columns = sqlite3_column_count(select);
    std::string marks;
    for (int c = 0; c < columns; ++c) absl::StrAppend(&marks, c ? ",?" : "?");
    sqlite3_stmt* insert = nullptr;
    const std::string into =
        absl::StrCat("INSERT OR IGNORE INTO ", table, " VALUES(", marks, ")");
    if (sqlite3_prepare_v2(to, into.c_str(), -1, &insert, nullptr) ==
        SQLITE_OK) {
      while (sqlite3_step(select) == SQLITE_ROW) {
        for (int c = 0; c < columns; ++c) {
          sqlite3_bind_value(insert, c + 1, sqlite3_column_value(select, c));
        }
        if (sqlite3_step(insert) == SQLITE_DONE) copied += sqlite3_changes(to);
        sqlite3_reset(insert);
      }
    }
    sqlite3_finalize(insert);
    sqlite3_finalize(select);
  }
  return copied;
}

// OK, or why the file cannot be trusted as it is.
absl::Status CheckFile(const std::string& path) {
  sqlite3* db = nullptr;
  int code = sqlite3_open_v2(
      path.c_str(), &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, nullptr);
  absl::Status status;
  if (code != SQLITE_OK) {
    status = SqliteStatus(code, db, path);
  } else {
    sqlite3_stmt* check = nullptr;
    code = sqlite3_prepare_v2(db, "PRAGMA quick_check(1)", -1, &check, nullptr);
    if (code == SQLITE_OK) code = sqlite3_step(check);
    if (code == SQLITE_ROW) {
      const auto* text =
          reinterpret_cast<const char*>(sqlite3_column_text(check, 0));
      const std::string found = text == nullptr ? "no answer" : text;
      if (found != "ok") status = absl::DataLossError(found);
    } else {
      status = SqliteStatus(code, db, path);
    }
    sqlite3_finalize(check);
  }
  sqlite3_close_v2(db);
  return status;
}

// Sets a damaged file aside and copies what can be read of it into a new one
// at the same path. Returns a line for people.
absl::StatusOr<std::string> Salvage(const std::string& path,
                                    const absl::Status& damage) {
  std::string aside;
  for (int n = 1; aside.empty() || FileExists(aside); ++n) {
    aside = absl::StrCat(path, ".damaged-", n);
  }
  for (const char* suffix : {"", "-wal", "-shm"}) {
    const std::string from = absl::StrCat(path, suffix);
    if (FileExists(from) &&
        std::rename(from.c_str(), absl::StrCat(aside, suffix).c_str()) != 0) {
      return absl::InternalError(
          absl::StrCat("store: a damaged file cannot be set aside: ", from));
    }
  }
  sqlite3* to = nullptr;
  sqlite3* from = nullptr;
  int64_t rows = 0;
  int64_t jobs = 0;
  // Built beside and renamed, so that a crash in here loses nothing.
  const std::string fresh = absl::StrCat(path, ".new");
  std::remove(fresh.c_str());
  int code = sqlite3_open(fresh.c_str(), &to);
  if (code == SQLITE_OK) {
    code = sqlite3_exec(to, kSchema1, nullptr, nullptr, nullptr);
  }
  if (code == SQLITE_OK) {
    code = sqlite3_exec(to, kSchema2, nullptr, nullptr, nullptr);
  }
  if (code == SQLITE_OK) {
    const std::string version =
        absl::StrCat("PRAGMA user_version=", kStoreSchemaVersion);
    code = sqlite3_exec(to, version.c_str(), nullptr, nullptr, nullptr);
  }
  if (code == SQLITE_OK &&
      sqlite3_open_v2(aside.c_str(), &from, SQLITE_OPEN_READWRITE, nullptr) ==
          SQLITE_OK) {
    sqlite3_exec(to, "BEGIN", nullptr, nullptr, nullptr);
    for (const char* table : kTables) {
      const int64_t copied = CopyRows(from, to, table);
      rows += copied;
      if (absl::string_view(table) == "jobs") jobs = copied;
    }
    code = sqlite3_exec(to, "COMMIT", nullptr, nullptr, nullptr);
  }
  absl::Status status =
      code == SQLITE_OK ? absl::OkStatus() : SqliteStatus(code, to, fresh);
  sqlite3_close_v2(from);
  sqlite3_close_v2(to);
  EBB_RETURN_IF_ERROR(status);
  if (std::rename(fresh.c_str(), path.c_str()) != 0) {
    return absl::InternalError(absl::StrCat("store: cannot rename ", fresh));
  }
  return absl::StrCat(
      "the store was damaged (", damage.message(), "): ", jobs, " jobs and ",
      rows, " rows could be read; the damaged file is kept as ", aside);
}

}  // namespace

Store::Store() = default;
Store::~Store() = default;

void Store::SetObserver(Observer observer) { observer_ = std::move(observer); }

absl::StatusOr<std::unique_ptr<Store>> Store::Open(const std::string& path) {
  std::unique_ptr<Store> store(new Store);
  store->path_ = path;
  if (FileBytes(path) > 0) {
    const absl::Status damage = CheckFile(path);
    if (absl::IsDataLoss(damage)) {
      EBB_ASSIGN_OR_RETURN(store->recovery_note_, Salvage(path, damage));
    } else {
      EBB_RETURN_IF_ERROR(damage);
    }
  }
  store->writer_ = std::make_unique<Connection>();
  store->reader_ = std::make_unique<Connection>();
  EBB_RETURN_IF_ERROR(store->writer_->Open(path));
  {
    Connection& writer = *store->writer_;
    absl::MutexLock lock(&writer.mutex);
    EBB_ASSIGN_OR_RETURN(const int64_t version,
                         writer.ReadInt("PRAGMA user_version"));
    if (version > kStoreSchemaVersion) {
      return absl::FailedPreconditionError(absl::StrCat(
          "store: schema version ", version, " is newer than ",
          kStoreSchemaVersion, ", the newest that this program knows: ", path,
          ": use the newer program"));
    }
    if (version < kStoreSchemaVersion) {
      EBB_RETURN_IF_ERROR(writer.Execute("BEGIN IMMEDIATE"));
      if (version < 1) EBB_RETURN_IF_ERROR(writer.Execute(kSchema1));
      if (version < 2) EBB_RETURN_IF_ERROR(writer.Execute(kSchema2));
      EBB_RETURN_IF_ERROR(writer.Execute("PRAGMA user_version=2"));
      static_assert(kStoreSchemaVersion == 2);
      EBB_RETURN_IF_ERROR(writer.Execute("COMMIT"));
    }
  }
  chmod(path.c_str(), 0600);
  EBB_RETURN_IF_ERROR(store->reader_->Open(path));
  return store;
}

absl::Status Store::Connection::Write(const Change& change) {
  for (const v1::Job& job : change.new_jobs) {
    EBB_ASSIGN_OR_RETURN(sqlite3_stmt * prepared,
                         Prepare("INSERT INTO jobs(id, state, job, spec, plan) "
                                 "VALUES(?, ?, ?, ?, ?)"));
    EBB_RETURN_IF_ERROR(Statement(prepared)
                            .Text(job.id())
                            .Int(job.state())
                            .Blob(SerializeJob(job))
                            .Blob(job.spec().SerializeAsString())
                            .Blob(job.plan().SerializeAsString())
                            .Run());
  }
  for (const v1::Job& job : change.jobs) {
    EBB_ASSIGN_OR_RETURN(
        sqlite3_stmt * prepared,
        Prepare("UPDATE jobs SET state = ?, job = ? WHERE id = ?"));
    EBB_RETURN_IF_ERROR(Statement(prepared)
                            .Int(job.state())
                            .Blob(SerializeJob(job))
                            .Text(job.id())
                            .Run());
  }
  for (const v1::Job& job : change.replanned_jobs) {
    EBB_ASSIGN_OR_RETURN(sqlite3_stmt * prepared,
                         Prepare("UPDATE jobs SET state = ?, job = ?, spec = "
                                 "?, plan = ? WHERE id = ?"));
    EBB_RETURN_IF_ERROR(Statement(prepared)
                            .Int(job.state())
                            .Blob(SerializeJob(job))
                            .Blob(job.spec().SerializeAsString())
                            .Blob(job.plan().SerializeAsString())
                            .Text(job.id())
                            .Run());
  }
  for (const PlansRow& row : change.plans) {
    EBB_ASSIGN_OR_RETURN(
        sqlite3_stmt * prepared,
        Prepare("INSERT OR REPLACE INTO job_plans(job_id, plans) "
                "VALUES(?, ?)"));
    EBB_RETURN_IF_ERROR(Statement(prepared)
                            .Text(row.job_id)
                            .Blob(row.plans.SerializeAsString())
                            .Run());
  }
  for (const RequestRow& row : change.requests) {
    EBB_ASSIGN_OR_RETURN(
        sqlite3_stmt * prepared,
        Prepare("INSERT INTO request_ids(request_id, job_id, spec) "
                "VALUES(?, ?, ?)"));
    EBB_RETURN_IF_ERROR(Statement(prepared)
                            .Text(row.request_id)
                            .Text(row.job_id)
                            .Blob(row.spec)
                            .Run());
  }
  for (const AttemptRow& row : change.attempts) {
    EBB_ASSIGN_OR_RETURN(
        sqlite3_stmt * prepared,
        Prepare("INSERT OR REPLACE INTO attempts(job_id, attempt, "
                "launch_micros, ended) VALUES(?, ?, ?, ?)"));
    EBB_RETURN_IF_ERROR(Statement(prepared)
                            .Text(row.job_id)
                            .Int(row.attempt)
                            .Int(absl::ToUnixMicros(row.launch_time))
                            .Int(row.ended)
                            .Run());
  }
  for (const RankRow& row : change.ranks) {
    EBB_ASSIGN_OR_RETURN(
        sqlite3_stmt * prepared,
        Prepare("INSERT OR REPLACE INTO ranks(job_id, attempt, rank, sequence, "
                "started, stepped, finished) VALUES(?, ?, ?, ?, ?, ?, ?)"));
    Statement statement(prepared);
    statement.Text(row.job_id)
        .Int(row.attempt)
        .Int(row.rank)
        .Int(row.sequence)
        .Int(row.started)
        .Int(row.stepped);
    if (row.finished) {
      statement.Blob(row.finished->SerializeAsString());
    } else {
      statement.Null();
    }
    EBB_RETURN_IF_ERROR(statement.Run());
  }
  for (const StepRow& row : change.steps) {
    // The newest attempt that ran a step has the word.
    EBB_ASSIGN_OR_RETURN(
        sqlite3_stmt * prepared,
        Prepare("INSERT INTO steps(job_id, step, rank, attempt, report) "
                "VALUES(?, ?, ?, ?, ?) ON CONFLICT(job_id, step, rank) DO "
                "UPDATE SET attempt = excluded.attempt, report = "
                "excluded.report WHERE excluded.attempt >= attempt"));
    EBB_RETURN_IF_ERROR(Statement(prepared)
                            .Text(row.job_id)
                            .Int(row.step.step())
                            .Int(row.rank)
                            .Int(row.step.attempt())
                            .Blob(row.step.SerializeAsString())
                            .Run());
  }
  for (const EvalRow& row : change.evals) {
    EBB_ASSIGN_OR_RETURN(sqlite3_stmt * prepared,
                         Prepare("INSERT OR REPLACE INTO evals(job_id, step, "
                                 "report) VALUES(?, ?, ?)"));
    EBB_RETURN_IF_ERROR(Statement(prepared)
                            .Text(row.job_id)
                            .Int(row.report.step())
                            .Blob(row.report.SerializeAsString())
                            .Run());
  }
  for (const CheckpointRow& row : change.checkpoints) {
    EBB_ASSIGN_OR_RETURN(
        sqlite3_stmt * prepared,
        Prepare("INSERT OR REPLACE INTO checkpoints(job_id, step, report) "
                "VALUES(?, ?, ?)"));
    EBB_RETURN_IF_ERROR(Statement(prepared)
                            .Text(row.job_id)
                            .Int(row.report.step())
                            .Blob(row.report.SerializeAsString())
                            .Run());
  }
  for (const EventRow& row : change.events) {
    v1::JobEvent event = row.event;
    if (event.has_job()) {
      event.mutable_job()->clear_spec();
      event.mutable_job()->clear_plan();
    }
    EBB_ASSIGN_OR_RETURN(sqlite3_stmt * prepared,
                         Prepare("INSERT INTO events(job_id, sequence, event) "
                                 "VALUES(?, ?, ?)"));
    EBB_RETURN_IF_ERROR(Statement(prepared)
                            .Text(row.job_id)
                            .Int(row.event.sequence())
                            .Blob(event.SerializeAsString())
                            .Run());
  }
  return absl::OkStatus();
}

namespace {

absl::StatusOr<NumberedJob> ReadJob(const Statement& row) {
  NumberedJob job;
  job.number = row.GetInt(0);
  EBB_RETURN_IF_ERROR(Parse(row.GetBytes(1), "job", &job.job));
  EBB_RETURN_IF_ERROR(Parse(row.GetBytes(2), "spec", job.job.mutable_spec()));
  EBB_RETURN_IF_ERROR(Parse(row.GetBytes(3), "plan", job.job.mutable_plan()));
  return job;
}

}  // namespace

absl::Status Store::Apply(const Change& change) {
  if (change.empty()) return absl::OkStatus();
  const Timed timed(observer_, "apply");
  absl::MutexLock lock(&writer_->mutex);
  EBB_RETURN_IF_ERROR(writer_->Execute("BEGIN IMMEDIATE"));
  absl::Status status = writer_->Write(change);
  if (status.ok()) status = writer_->Execute("COMMIT");
  if (!status.ok()) {
    // A failed COMMIT may have rolled back by itself: then this says so and
    // that is fine.
    writer_->Execute("ROLLBACK").IgnoreError();
  }
  return status;
}

absl::Status Store::DeleteJob(const std::string& id) {
  const Timed timed(observer_, "delete");
  absl::MutexLock lock(&writer_->mutex);
  EBB_RETURN_IF_ERROR(writer_->Execute("BEGIN IMMEDIATE"));
  absl::Status status;
  for (const char* sql : {"DELETE FROM jobs WHERE id = ?",
                          "DELETE FROM request_ids WHERE job_id = ?",
                          "DELETE FROM attempts WHERE job_id = ?",
                          "DELETE FROM ranks WHERE job_id = ?",
                          "DELETE FROM steps WHERE job_id = ?",
                          "DELETE FROM evals WHERE job_id = ?",
                          "DELETE FROM checkpoints WHERE job_id = ?",
                          "DELETE FROM job_plans WHERE job_id = ?",
                          "DELETE FROM events WHERE job_id = ?"}) {
    auto prepared = writer_->Prepare(sql);
    status =
        prepared.ok() ? Statement(*prepared).Text(id).Run() : prepared.status();
    if (!status.ok()) break;
  }
  if (status.ok()) status = writer_->Execute("COMMIT");
  if (!status.ok()) writer_->Execute("ROLLBACK").IgnoreError();
  return status;
}

absl::StatusOr<NumberedJob> Store::GetJob(const std::string& id) {
  const Timed timed(observer_, "get_job");
  absl::MutexLock lock(&reader_->mutex);
  EBB_ASSIGN_OR_RETURN(
      sqlite3_stmt * prepared,
      reader_->Prepare(
          "SELECT number, job, spec, plan FROM jobs WHERE id = ?"));
  Statement statement(prepared);
  EBB_ASSIGN_OR_RETURN(const bool found, statement.Text(id).Next());
  if (!found) return absl::NotFoundError("no such job");
  return ReadJob(statement);
}

absl::StatusOr<v1::JobPlans> Store::GetPlans(const std::string& id) {
  const Timed timed(observer_, "get_plans");
  absl::MutexLock lock(&reader_->mutex);
  EBB_ASSIGN_OR_RETURN(
      sqlite3_stmt * prepared,
      reader_->Prepare("SELECT plans FROM job_plans WHERE job_id = ?"));
  Statement statement(prepared);
  v1::JobPlans plans;
  EBB_ASSIGN_OR_RETURN(const bool found, statement.Text(id).Next());
  if (found) {
    EBB_RETURN_IF_ERROR(Parse(statement.GetBytes(0), "list of plans", &plans));
  }
  return plans;
}

absl::StatusOr<std::vector<NumberedJob>> Store::ListJobs(
    const std::vector<v1::State>& states, int64_t before, int limit,
    int64_t max_bytes) {
  const Timed timed(observer_, "list_jobs");
  absl::MutexLock lock(&reader_->mutex);
  // States as a bit mask: one statement serves every filter.
  int64_t mask = 0;
  for (const v1::State state : states) mask |= int64_t{1} << state;
  if (states.empty()) mask = -1;
  EBB_ASSIGN_OR_RETURN(
      sqlite3_stmt * prepared,
      reader_->Prepare("SELECT number, job, spec, plan FROM jobs WHERE number "
                       "< ? AND ((1 << state) & ?) != 0 ORDER BY number DESC "
                       "LIMIT ?"));
  Statement statement(prepared);
  statement.Int(before > 0 ? before : INT64_MAX).Int(mask).Int(limit);
  std::vector<NumberedJob> jobs;
  int64_t bytes = 0;
  while (bytes < max_bytes) {
    EBB_ASSIGN_OR_RETURN(const bool more, statement.Next());
    if (!more) break;
    EBB_ASSIGN_OR_RETURN(NumberedJob job, ReadJob(statement));
    job.job.mutable_plan()->clear_decisions();
    job.job.mutable_plan()->clear_pareto();
    bytes += static_cast<int64_t>(job.job.ByteSizeLong());
    jobs.push_back(std::move(job));
  }
  return jobs;
}

absl::StatusOr<std::vector<NumberedJob>> Store::LiveJobs() {
  const Timed timed(observer_, "live_jobs");
  absl::MutexLock lock(&reader_->mutex);
  EBB_ASSIGN_OR_RETURN(
      sqlite3_stmt * prepared,
      reader_->Prepare("SELECT number, job, spec, plan FROM jobs WHERE state "
                       "IN (1, 2, 3, 4) ORDER BY number"));
  static_assert(v1::STATE_QUEUED == 1 && v1::STATE_CANCELLING == 4);
  Statement statement(prepared);
  std::vector<NumberedJob> jobs;
  while (true) {
    EBB_ASSIGN_OR_RETURN(const bool more, statement.Next());
    if (!more) return jobs;
    EBB_ASSIGN_OR_RETURN(NumberedJob job, ReadJob(statement));
    jobs.push_back(std::move(job));
  }
}

absl::StatusOr<std::vector<int64_t>> Store::CountJobs() {
  const Timed timed(observer_, "count_jobs");
  absl::MutexLock lock(&reader_->mutex);
  EBB_ASSIGN_OR_RETURN(
      sqlite3_stmt * prepared,
      reader_->Prepare("SELECT state, COUNT(*) FROM jobs GROUP BY state"));
  Statement statement(prepared);
  std::vector<int64_t> counts(v1::State_ARRAYSIZE, 0);
  while (true) {
    EBB_ASSIGN_OR_RETURN(const bool more, statement.Next());
    if (!more) return counts;
    const int64_t state = statement.GetInt(0);
    if (state >= 0 && state < v1::State_ARRAYSIZE) {
      counts[state] = statement.GetInt(1);
    }
  }
}

absl::StatusOr<std::optional<RequestRow>> Store::GetRequest(
    const std::string& request_id) {
  const Timed timed(observer_, "get_request");
  absl::MutexLock lock(&reader_->mutex);
  EBB_ASSIGN_OR_RETURN(
      sqlite3_stmt * prepared,
      reader_->Prepare(
          "SELECT job_id, spec FROM request_ids WHERE request_id = ?"));
  Statement statement(prepared);
  EBB_ASSIGN_OR_RETURN(const bool found, statement.Text(request_id).Next());
  if (!found) return std::optional<RequestRow>();
  RequestRow row;
  row.request_id = request_id;
  row.job_id = std::string(statement.GetBytes(0));
  row.spec = std::string(statement.GetBytes(1));
  return std::optional<RequestRow>(std::move(row));
}

absl::StatusOr<std::vector<v1::JobEvent>> Store::Events(const std::string& id,
                                                        int64_t after_sequence,
                                                        int limit) {
  const Timed timed(observer_, "events");
  absl::MutexLock lock(&reader_->mutex);
  EBB_ASSIGN_OR_RETURN(
      sqlite3_stmt * prepared,
      reader_->Prepare("SELECT event FROM events WHERE job_id = ? AND sequence "
                       "> ? ORDER BY sequence LIMIT ?"));
  Statement statement(prepared);
  statement.Text(id).Int(after_sequence).Int(limit);
  std::vector<v1::JobEvent> events;
  while (true) {
    EBB_ASSIGN_OR_RETURN(const bool more, statement.Next());
    if (!more) return events;
    EBB_RETURN_IF_ERROR(
        Parse(statement.GetBytes(0), "event", &events.emplace_back()));
  }
}

absl::StatusOr<int64_t> Store::LastEvent(const std::string& id) {
  absl::MutexLock lock(&reader_->mutex);
  EBB_ASSIGN_OR_RETURN(
      sqlite3_stmt * prepared,
      reader_->Prepare("SELECT MAX(sequence) FROM events WHERE job_id = ?"));
  Statement statement(prepared);
  EBB_ASSIGN_OR_RETURN(const bool found, statement.Text(id).Next());
  return found ? statement.GetInt(0) : 0;
}

absl::StatusOr<std::vector<v1::Step>> Store::Steps(const std::string& id,
                                                   int num_ranks,
                                                   int64_t after_step,
                                                   int limit) {
  const Timed timed(observer_, "steps");
  absl::MutexLock lock(&reader_->mutex);
  EBB_ASSIGN_OR_RETURN(
      sqlite3_stmt * prepared,
      reader_->Prepare("SELECT report FROM steps WHERE job_id = ? AND step > ? "
                       "ORDER BY step, rank LIMIT ?"));
  Statement statement(prepared);
  statement.Text(id).Int(after_step).Int(int64_t{limit} * num_ranks);
  std::vector<v1::Step> steps;
  v1::Step whole;
  int parts = 0;
  while (true) {
    EBB_ASSIGN_OR_RETURN(const bool more, statement.Next());
    if (!more) return steps;
    v1::Step part;
    EBB_RETURN_IF_ERROR(Parse(statement.GetBytes(0), "step", &part));
    const bool joins = parts > 0 && part.step() == whole.step() &&
                       part.attempt() == whole.attempt();
    if (joins) {
      whole.mutable_ranks()->MergeFrom(part.ranks());
      ++parts;
    } else if (parts == 0 || part.step() != whole.step() ||
               part.attempt() > whole.attempt()) {
      whole = std::move(part);
      parts = 1;
    }
    if (parts == num_ranks) {
      steps.push_back(std::move(whole));
      whole.Clear();
      parts = 0;
    }
  }
}

absl::StatusOr<std::vector<RankRow>> Store::Ranks(const std::string& id,
                                                  int attempt) {
  absl::MutexLock lock(&reader_->mutex);
  EBB_ASSIGN_OR_RETURN(
      sqlite3_stmt * prepared,
      reader_->Prepare("SELECT rank, sequence, started, stepped, finished FROM "
                       "ranks WHERE job_id = ? AND attempt = ? ORDER BY rank"));
  Statement statement(prepared);
  statement.Text(id).Int(attempt);
  std::vector<RankRow> rows;
  while (true) {
    EBB_ASSIGN_OR_RETURN(const bool more, statement.Next());
    if (!more) return rows;
    RankRow row;
    row.job_id = id;
    row.attempt = attempt;
    row.rank = static_cast<int>(statement.GetInt(0));
    row.sequence = statement.GetInt(1);
    row.started = statement.GetInt(2) != 0;
    row.stepped = statement.GetInt(3) != 0;
    if (!statement.IsNull(4)) {
      EBB_RETURN_IF_ERROR(Parse(statement.GetBytes(4), "end of a rank",
                                &row.finished.emplace()));
    }
    rows.push_back(std::move(row));
  }
}

absl::StatusOr<std::optional<AttemptRow>> Store::GetAttempt(
    const std::string& id, int attempt) {
  absl::MutexLock lock(&reader_->mutex);
  EBB_ASSIGN_OR_RETURN(
      sqlite3_stmt * prepared,
      reader_->Prepare("SELECT launch_micros, ended FROM attempts WHERE job_id "
                       "= ? AND attempt = ?"));
  Statement statement(prepared);
  EBB_ASSIGN_OR_RETURN(const bool found,
                       statement.Text(id).Int(attempt).Next());
  if (!found) return std::optional<AttemptRow>();
  AttemptRow row;
  row.job_id = id;
  row.attempt = attempt;
  row.launch_time = absl::FromUnixMicros(statement.GetInt(0));
  row.ended = statement.GetInt(1) != 0;
  return std::optional<AttemptRow>(row);
}

int64_t Store::SizeBytes() const {
  return FileBytes(path_) + FileBytes(absl::StrCat(path_, "-wal"));
}

}  // namespace ebb
