// Which steps are worth a warning.
#include "server/training_warning.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

v1::TrainingWarning::Kind KindOf(double loss, double norm, v1::Job job = {}) {
  job.mutable_spec()->mutable_model()->set_vocab(257);
  v1::Step step;
  step.set_step(7);
  step.set_loss(loss);
  step.set_gradient_norm(norm);
  const auto warning = WarningOf(step, job);
  if (!warning.has_value()) return v1::TrainingWarning::KIND_UNSPECIFIED;
  EXPECT_EQ(warning->step(), 7);
  EXPECT_THAT(warning->message(), HasSubstr("at step 7"));
  EXPECT_THAT(warning->message(), HasSubstr("optimizer.lr"));
  return warning->kind();
}

TEST(TrainingWarning, SeesWhatIsNotFiniteAndWhatIsFarTooLarge) {
  // ln 257 is 5.55.
  EXPECT_EQ(KindOf(5.6, 1e6), v1::TrainingWarning::KIND_UNSPECIFIED);
  EXPECT_EQ(KindOf(55, 1), v1::TrainingWarning::KIND_UNSPECIFIED);
  EXPECT_EQ(KindOf(56, 1), v1::TrainingWarning::KIND_DIVERGING);
  for (const double bad : {kNan, -kNan, kInfinity, -kInfinity}) {
    EXPECT_EQ(KindOf(bad, 1), v1::TrainingWarning::KIND_NOT_FINITE);
    EXPECT_EQ(KindOf(5, bad), v1::TrainingWarning::KIND_NOT_FINITE);
  }
}

TEST(TrainingWarning, OnlyWhatIsGraverIsSaidAgain) {
  v1::Job job;
  job.mutable_warning()->set_kind(v1::TrainingWarning::KIND_DIVERGING);
  EXPECT_EQ(KindOf(100, 1, job), v1::TrainingWarning::KIND_UNSPECIFIED);
  EXPECT_EQ(KindOf(kNan, 1, job), v1::TrainingWarning::KIND_NOT_FINITE);
  job.mutable_warning()->set_kind(v1::TrainingWarning::KIND_NOT_FINITE);
  EXPECT_EQ(KindOf(kNan, 1, job), v1::TrainingWarning::KIND_UNSPECIFIED);
  EXPECT_EQ(KindOf(100, 1, job), v1::TrainingWarning::KIND_UNSPECIFIED);
}

}  // namespace
}  // namespace ebb
