// Macros and one function around absl::Status, which Debian's Abseil lacks.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace ebb {

// Appends ": where" to the message, keeping code and payloads. OK stays OK.
inline absl::Status Annotate(const absl::Status& status,
                             absl::string_view where) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(),
                         absl::StrCat(status.message(), ": ", where));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    annotated.SetPayload(url, payload);
  });
  return annotated;
}

}  // namespace ebb

#define EBB_CONCAT_INNER(a, b) a##b
#define EBB_CONCAT(a, b) EBB_CONCAT_INNER(a, b)

#define EBB_RETURN_IF_ERROR(expr)                                              \
  do {                                                                         \
    if (absl::Status ebb_status = (expr); !ebb_status.ok()) return ebb_status; \
  } while (false)

#define EBB_ASSIGN_OR_RETURN(lhs, expr) \
  EBB_ASSIGN_OR_RETURN_INNER(EBB_CONCAT(ebb_status_or_, __LINE__), lhs, expr)
#define EBB_ASSIGN_OR_RETURN_INNER(tmp, lhs, expr) \
  auto tmp = (expr);                               \
  if (!tmp.ok()) return std::move(tmp).status();   \
  lhs = *std::move(tmp)

// Ends the process: only where the program itself is wrong, never for input.
#define EBB_CHECK(condition)                                          \
  do {                                                                \
    if (!(condition)) {                                               \
      std::fprintf(stderr, "check failed: %s at %s:%d\n", #condition, \
                   __FILE__, __LINE__);                               \
      std::abort();                                                   \
    }                                                                 \
  } while (false)
