// Files on a disk against specs, right and wrong.
#include "server/job_files.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/effective_spec.h"
#include "proto/validator.h"

namespace ebb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class JobFilesTest : public testing::Test {
 protected:
  JobFilesTest() {
    std::string name = testing::TempDir() + "job_files.XXXXXX";
    directory_ = mkdtemp(name.data());
    spec_.mutable_model()->set_layers(2);
    spec_.mutable_model()->set_hidden(16);
    spec_.mutable_model()->set_heads(2);
    spec_.mutable_model()->set_vocab(257);
    spec_.mutable_model()->set_seq_len(16);
    spec_.mutable_data()->set_train(directory_ + "/corpus.txt");
    spec_.mutable_batch()->set_global(4);
    spec_.mutable_batch()->set_micro(2);
    spec_.set_steps(1);
  }
  ~JobFilesTest() override { std::filesystem::remove_all(directory_); }

  void Write(const std::string& name, size_t bytes) {
    std::ofstream(directory_ + "/" + name) << std::string(bytes, 'x');
  }

  // As the coordinator calls it.
  JobFiles Check() {
    wrong_.clear();
    for (const SpecMistake& mistake : FindSpecMistakes(spec_, {})) {
      wrong_.push_back(mistake.violation);
    }
    return CheckJobFiles(WithDefaults(spec_), wrong_);
  }

  std::vector<std::string> Fields() {
    std::vector<std::string> fields;
    for (const v1::Violation& violation : Check().violations) {
      fields.push_back(violation.field());
    }
    return fields;
  }

  std::string directory_;
  v1::JobSpec spec_;
  std::vector<v1::Violation> wrong_;
};

TEST_F(JobFilesTest, MissingFilesAreAllTold) {
  spec_.mutable_data()->set_validation(directory_ + "/none.txt");
  spec_.mutable_checkpoint()->set_init_from(directory_ + "/weights");
  EXPECT_THAT(Fields(), ElementsAre("data.train", "data.validation",
                                    "checkpoint.init_from"));
  EXPECT_EQ(Check().code, absl::StatusCode::kInvalidArgument);
  // Whatever else is wrong, too.
  spec_.mutable_optimizer()->set_lr(-1);
  spec_.mutable_model()->set_heads(5);
  spec_.mutable_model()->clear_seq_len();
  spec_.mutable_batch()->set_micro(-1);
  EXPECT_THAT(Fields(), ElementsAre("data.train", "data.validation",
                                    "checkpoint.init_from"));
  EXPECT_EQ(wrong_.size(), 4u);
}

TEST_F(JobFilesTest, DirectoryOfValuesOnDiskMustTakeFiles) {
  Write("corpus.txt", 1000);
  spec_.mutable_memory()->set_offload(v1::OFFLOAD_DISK);
  spec_.mutable_memory()->set_offload_dir(directory_);
  EXPECT_THAT(Fields(), IsEmpty());
  spec_.mutable_memory()->set_offload_dir(directory_ + "/corpus.txt");
  EXPECT_THAT(Fields(), ElementsAre("memory.offload_dir"));
  EXPECT_EQ(Check().code, absl::StatusCode::kFailedPrecondition);
  spec_.mutable_memory()->set_offload_dir("relative");
  EXPECT_THAT(Fields(), IsEmpty()) << "the path is a mistake already";
}

TEST_F(JobFilesTest, OneProblemHasItsOwnCode) {
  EXPECT_THAT(Fields(), ElementsAre("data.train"));
  EXPECT_EQ(Check().code, absl::StatusCode::kNotFound);
  Write("corpus.txt", 1000);
  EXPECT_THAT(Fields(), IsEmpty());
}

TEST_F(JobFilesTest, ShortDataAreToldWithOtherMistakes) {
  Write("corpus.txt", 32);  // 33 tokens: two sequences need just that
  spec_.mutable_optimizer()->set_lr(-1);
  EXPECT_THAT(Fields(), IsEmpty());
  Write("corpus.txt", 31);
  ASSERT_THAT(Fields(), ElementsAre("data.train"));
  EXPECT_THAT(Check().violations[0].rule(), HasSubstr("need at least 33"));
}

TEST_F(JobFilesTest, WhatRestsOnAWrongFieldIsNotHeldAgainstAFile) {
  Write("corpus.txt", 20);
  spec_.mutable_model()->set_seq_len(-3);
  EXPECT_THAT(Fields(), IsEmpty()) << "the length is not known";
  spec_.mutable_model()->set_seq_len(16);
  spec_.mutable_batch()->set_micro(0);
  EXPECT_THAT(Fields(), IsEmpty()) << "one sequence is enough for some batch";
  spec_.mutable_batch()->set_micro(2);
  Write("corpus.txt", 1000);
  spec_.mutable_model()->set_vocab(1);
  EXPECT_THAT(Fields(), IsEmpty()) << "the vocabulary is not known";
  spec_.mutable_model()->set_vocab(257);
  // Megatron, had it an index; auto takes a .bin for no text.
  Write("tokens.bin", 1000);
  spec_.mutable_data()->set_train(directory_ + "/tokens.bin");
  EXPECT_THAT(Fields(), ElementsAre("data.train"));
  spec_.mutable_data()->set_format(static_cast<v1::DataFormat>(99));
  EXPECT_THAT(Fields(), IsEmpty()) << "the format is not known";
  spec_.mutable_data()->set_train("relative.txt");
  EXPECT_THAT(Fields(), IsEmpty()) << "the path is a mistake already";
}

}  // namespace
}  // namespace ebb
