// Two passes alternate, one at a time; an error of one ends both.
#include "megalith/nn/turns.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <string>

#include "megalith/base/error.h"
#include "tests/support/expect.h"

namespace megalith::nn {
namespace {

// Returns a pass of `pieces` pieces that writes its name at each of them.
std::function<void()> writing(Turns& turns, std::string& log, char name, int pieces) {
  return [&turns, &log, name, pieces] {
    for (int i = 0; i < pieces; ++i) {
      if (i > 0) turns.hand_over();
      log += name;
    }
  };
}

TEST(Turns, PassesAlternateAndTheLongerOneEndsAlone) {
  Turns turns(at::kCPU);
  for (const auto& [forward, backward, expected] :
       std::vector<std::tuple<int, int, std::string>>{{3, 3, "BFBFBF"}, {1, 4, "BFBBB"}, {4, 1, "BFFFF"}}) {
    std::string log;
    turns.run(writing(turns, log, 'F', forward), writing(turns, log, 'B', backward));
    EXPECT_EQ(log, expected);
  }
  std::string log;
  writing(turns, log, 'F', 3)();  // without a partner
  EXPECT_EQ(log, "FFF");
}

TEST(Turns, AnErrorEndsBothPassesAndIsPassedOn) {
  Turns turns(at::kCPU);
  for (const char failing : {'F', 'B'})
    for (const int at : {0, 1, 2}) {
      std::string log;
      const auto pass = [&](char name) {
        return [&, name] {
          for (int i = 0; i < 4; ++i) {
            if (i > 0) turns.hand_over();
            if (name == failing && i == at) throw DataError(std::string("broken in ") + name);
            log += name;
          }
        };
      };
      testing::expect_error<DataError>([&] { turns.run(pass('F'), pass('B')); }, {std::string("broken in ") + failing});
      // The partner has not run after the error.
      EXPECT_EQ(std::ranges::count(log, failing), at) << log;
      EXPECT_EQ(std::ranges::count(log, failing == 'F' ? 'B' : 'F'), failing == 'F' ? at + 1 : at) << log;
    }
  std::string log;
  turns.run(writing(turns, log, 'F', 2), writing(turns, log, 'B', 2));
  EXPECT_EQ(log, "BFBF") << "an error leaves nothing behind";
}

TEST(Turns, BothPassesHaveTheSettingsOfTheCaller) {
  Turns turns(at::kCPU);
  const at::NoGradGuard no_grad;
  bool on_forward = true, on_backward = true;
  turns.run([&] { on_forward = at::GradMode::is_enabled(); }, [&] { on_backward = at::GradMode::is_enabled(); });
  EXPECT_FALSE(on_forward);
  EXPECT_FALSE(on_backward);
}

TEST(Turns, WhatAPassHasChangedForItselfIsPutAside) {
  Turns turns(at::kCPU);
  std::string log;
  const auto backward = [&] {
    const Turns::Aside outer([&] { log += "2"; }, [&] { log += "3"; });
    const Turns::Aside inner([&] { log += "1"; }, [&] { log += "4"; });
    turns.hand_over();
  };
  turns.run([&] { log += "F"; }, backward);
  EXPECT_EQ(log, "12F34");
}

TEST(Turns, AreCurrentInTheirScope) {
  Turns turns(at::kCPU);
  EXPECT_EQ(Turns::current(), nullptr);
  {
    const Turns::Scope scope(&turns);
    EXPECT_EQ(Turns::current(), &turns);
    const Turns::Scope none(nullptr);
    EXPECT_EQ(Turns::current(), nullptr);
  }
  EXPECT_EQ(Turns::current(), nullptr);
}

}  // namespace
}  // namespace megalith::nn
