// Terminal rules and paths.
#include "client/environment.h"

#include "gtest/gtest.h"

namespace ebb {
namespace {

TEST(Environment, ColourNeedsATerminalUnlessForced) {
  Environment environment;
  EXPECT_FALSE(environment.CanColor());
  environment.out_is_terminal = true;
  EXPECT_TRUE(environment.CanColor());
  environment.variables["TERM"] = "dumb";
  EXPECT_FALSE(environment.CanColor());
  environment.variables["CLICOLOR_FORCE"] = "1";
  EXPECT_TRUE(environment.CanColor());
  environment.variables["NO_COLOR"] = "1";
  EXPECT_FALSE(environment.CanColor());
}

TEST(Environment, RedrawsOnlyOnATerminalThatCan) {
  Environment environment;
  EXPECT_FALSE(environment.CanRedraw());
  environment.err_is_terminal = true;
  environment.variables["NO_COLOR"] = "1";
  EXPECT_TRUE(environment.CanRedraw());
  environment.variables["TERM"] = "dumb";
  EXPECT_FALSE(environment.CanRedraw());
}

TEST(Environment, RelativePathsStandInTheWorkingDirectory) {
  Environment environment;
  environment.working_directory = "/home/ada";
  EXPECT_EQ(environment.AbsolutePath("a/../b.txt"), "/home/ada/b.txt");
  EXPECT_EQ(environment.AbsolutePath("/x/y"), "/x/y");
}

TEST(Environment, OfThisProcess) {
  const Environment environment = SystemEnvironment();
  EXPECT_FALSE(environment.program_directory.empty());
  EXPECT_FALSE(environment.working_directory.empty());
  EXPECT_FALSE(environment.Variable("PATH").empty());
}

}  // namespace
}  // namespace ebb
