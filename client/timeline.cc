// See timeline.h.
#include "client/timeline.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "client/format.h"
#include "proto/plan.pb.h"
#include "proto/plan_views.pb.h"
#include "proto/violations.h"

namespace ebb {
namespace {

struct ClassStyle {
  const char* name;
  char letter;
  const char* color;  // distinct to colour-blind eyes, too
};

// From the bottom of the stack: what stays for the whole step lies lowest.
constexpr ClassStyle kClasses[] = {
    {"runtime", 't', "#3b3b3b"},       {"parameters", 'p', "#5b6b7f"},
    {"optimizer", 'o', "#93a1b2"},     {"gradients", 'g', "#c6b3d9"},
    {"saved", 's', "#0072b2"},         {"recompute", 'r', "#d55e00"},
    {"live", 'l', "#56b4e9"},          {"workspace", 'w', "#e6b800"},
    {"communication", 'c', "#009e73"},
};
constexpr size_t kNumClasses = std::size(kClasses);

using Stack = std::array<int64_t, kNumClasses>;

Stack StackOf(const v1::TimelinePoint& point) {
  Stack stack{};
  for (size_t c = 0; c < kNumClasses; ++c) {
    const auto it = point.memory().find(kClasses[c].name);
    if (it != point.memory().end()) stack[c] = it->second;
  }
  return stack;
}

int64_t SumOf(const Stack& stack) {
  int64_t sum = 0;
  for (const int64_t bytes : stack) sum += bytes;
  return sum;
}

int64_t EndOf(const v1::TimelinePoint& point) {
  return point.first_instruction() + point.num_instructions();
}

const v1::TimelinePoint* LargestPoint(const v1::Timeline& timeline) {
  const auto sum = [](const v1::TimelinePoint& point) {
    return SumOf(StackOf(point));
  };
  const auto it = std::max_element(
      timeline.points().begin(), timeline.points().end(),
      [&](const auto& a, const auto& b) { return sum(a) < sum(b); });
  return it == timeline.points().end() ? nullptr : &*it;
}

// Blocks that belong together: "zero", "forward".
struct Part {
  std::string name;
  int first_layer = -1;  // -1: in no layer, or not told
  int last_layer = -1;
  int64_t first_instruction = 0;
  int64_t num_instructions = 0;
  bool in_microbatch = false;
};

// The first word of a block's name: blocks of one kind, in and outside the
// layers, share it.
std::string KindOf(const v1::TimelineBlock& block) {
  return block.name().substr(0, block.name().find('_'));
}

std::vector<Part> PartsOf(const v1::Timeline& timeline) {
  std::vector<Part> parts;
  for (const v1::TimelineBlock& block : timeline.blocks()) {
    const std::string kind = OneLine(KindOf(block));
    if (parts.empty() || parts.back().name != kind ||
        parts.back().in_microbatch != block.in_microbatch()) {
      Part& part = parts.emplace_back();
      part.name = kind;
      part.first_instruction = block.first_instruction();
      part.in_microbatch = block.in_microbatch();
    }
    Part& part = parts.back();
    part.num_instructions += block.num_instructions();
    if (!block.in_microbatch() || block.first_layer() < 0) continue;
    part.first_layer = part.first_layer < 0
                           ? block.first_layer()
                           : std::min(part.first_layer, block.first_layer());
    part.last_layer = std::max(part.last_layer, block.last_layer());
  }
  return parts;
}

std::string LayersOf(const Part& part) {
  if (part.first_layer < 0) return "";
  if (part.first_layer == part.last_layer) return absl::StrCat(part.last_layer);
  return absl::StrCat(part.first_layer, "-", part.last_layer);
}

// The longest of the part's labels that fits, or nothing.
std::string LabelWithin(const Part& part, size_t width) {
  const std::string layers = LayersOf(part);
  const std::string whole =
      layers.empty() ? part.name : absl::StrCat(part.name, " ", layers);
  for (const std::string& label : {whole, part.name}) {
    if (label.size() <= width) return label;
  }
  return "";
}

// --- text ---

constexpr int kTextRows = 10;
constexpr int kTextAxis = 12;  // "  1.50 MiB |"

}  // namespace

std::string TimelineText(const v1::Timeline& timeline, int columns) {
  const v1::TimelinePoint* const largest = LargestPoint(timeline);
  const int64_t all = timeline.num_instructions();
  if (largest == nullptr || all <= 0) return "";
  const int width = std::max(columns, 40) - kTextAxis - 1;
  const int64_t top = std::max<int64_t>(1, SumOf(StackOf(*largest)));

  // The largest moment of each column.
  std::vector<Stack> stacks(width);
  std::vector<bool> recompute(width, false);
  for (const v1::TimelinePoint& point : timeline.points()) {
    const int64_t first = point.first_instruction() * width / all;
    const int64_t last =
        std::max(first, (EndOf(point) * width + all - 1) / all - 1);
    const Stack stack = StackOf(point);
    for (int64_t c = first; c <= last && c < width; ++c) {
      if (SumOf(stack) > SumOf(stacks[c])) stacks[c] = stack;
      if (point.num_recompute() > 0) recompute[c] = true;
    }
  }

  std::string text;
  std::array<bool, kNumClasses> is_used{};
  for (int row = kTextRows - 1; row >= 0; --row) {
    std::string line = row == kTextRows - 1
                           ? absl::StrFormat("%10s |", FormatBytes(top))
                       : row == kTextRows / 2 - 1
                           ? absl::StrFormat("%10s |", FormatBytes(top / 2))
                           : std::string(11, ' ') + "|";
    for (const Stack& stack : stacks) {
      // The class at the row's middle; what does not reach it is not shown.
      const double middle = (row + 0.5) / kTextRows * static_cast<double>(top);
      double sum = 0;
      char letter = ' ';
      for (size_t c = 0; c < kNumClasses && letter == ' '; ++c) {
        sum += static_cast<double>(stack[c]);
        if (sum < middle) continue;
        letter = kClasses[c].letter;
        is_used[c] = true;
      }
      line += letter;
    }
    absl::StrAppend(&text, line.substr(0, line.find_last_not_of(' ') + 1),
                    "\n");
  }
  // Where something is computed again, and what runs.
  std::string axis = absl::StrFormat("%10s +", "0 B");
  for (const bool again : recompute) axis += again ? '^' : '-';
  std::string labels(kTextAxis + width, ' ');
  for (const Part& part : PartsOf(timeline)) {
    const int64_t begin = part.first_instruction * width / all;
    const int64_t end =
        (part.first_instruction + part.num_instructions) * width / all;
    if (end - begin < 2) continue;
    labels[kTextAxis + begin] = '|';
    const std::string label =
        LabelWithin(part, static_cast<size_t>(end - begin - 1));
    labels.replace(kTextAxis + begin + 1, label.size(), label);
  }
  labels.erase(labels.find_last_not_of(' ') + 1);
  absl::StrAppend(&text, axis, "\n", labels, "\n");

  std::string legend = std::string(kTextAxis, ' ');
  size_t used = legend.size();
  for (size_t c = 0; c < kNumClasses; ++c) {
    if (!is_used[c]) continue;
    const std::string entry =
        absl::StrFormat("%c %s  ", kClasses[c].letter, kClasses[c].name);
    if (used + entry.size() > static_cast<size_t>(kTextAxis + width + 2)) {
      legend.erase(legend.find_last_not_of(' ') + 1);
      absl::StrAppend(&legend, "\n", std::string(kTextAxis, ' '));
      used = kTextAxis;
    }
    legend += entry;
    used += entry.size();
  }
  legend.erase(legend.find_last_not_of(' ') + 1);
  absl::StrAppend(&text, legend, "\n");
  return text;
}

// --- SVG ---

namespace {

constexpr double kWidth = 1090;
constexpr double kHeight = 560;
constexpr double kLeft = 92;
constexpr double kRight = 880;
constexpr double kTop = 96;
constexpr double kBottom = 430;
constexpr double kGap = 18;         // for the microbatches that are not drawn
constexpr double kCharacter = 6.2;  // width of one at 11 px, on the safe side

// Text as it may stand in XML. OneLine leaves no control characters and no
// invalid UTF-8.
std::string Xml(absl::string_view text, size_t max_bytes = 200) {
  return absl::StrReplaceAll(OneLine(text, max_bytes), {{"&", "&amp;"},
                                                        {"<", "&lt;"},
                                                        {">", "&gt;"},
                                                        {"\"", "&quot;"},
                                                        // No characters of XML.
                                                        {"\xEF\xBF\xBE", "?"},
                                                        {"\xEF\xBF\xBF", "?"}});
}

std::string TextElement(double x, double y, const char* attributes,
                        absl::string_view text) {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\"%s>%s</text>\n", x, y,
                         attributes, text);
}

// The least of 1, 2, 5, 10, 20, ... of which `total` has at most `most`.
int64_t RoundStep(int64_t total, int64_t most) {
  int64_t power = 1;
  while (true) {
    for (const int64_t digit : {1, 2, 5}) {
      if (total / (digit * power) <= most) return digit * power;
    }
    power *= 10;
  }
}

// Marks of an axis of bytes: a round number of a power of 1024.
struct Ticks {
  int64_t step = 1;
  int64_t unit = 1;
  const char* unit_name = "B";
};

Ticks TicksFor(int64_t top) {
  constexpr const char* kUnits[] = {"B",   "KiB", "MiB", "GiB",
                                    "TiB", "PiB", "EiB"};
  Ticks ticks;
  size_t unit = 0;
  while (unit + 1 < std::size(kUnits) && top / ticks.unit >= 4096) {
    ticks.unit *= 1024;
    ++unit;
  }
  ticks.unit_name = kUnits[unit];
  ticks.step = RoundStep(top / ticks.unit, 6) * ticks.unit;
  return ticks;
}

class Picture {
 public:
  Picture(const v1::Timeline& timeline, const v1::Plan& plan)
      : timeline_(timeline), plan_(plan) {
    for (const v1::TimelinePoint& point : timeline.points()) {
      stacks_.push_back(StackOf(point));
      largest_ = std::max(largest_, SumOf(stacks_.back()));
    }
    if (plan.ranks_size() > 0) peak_ = plan.ranks(0).peak_bytes();
    for (const v1::TimelineBlock& block : timeline.blocks()) {
      if (block.in_microbatch()) {
        microbatch_end_ = block.first_instruction() + block.num_instructions();
        if (microbatch_begin_ < 0) {
          microbatch_begin_ = block.first_instruction();
        }
      }
    }
    has_gap_ = timeline.num_microbatches() > 1 && microbatch_begin_ >= 0;
    // The budget is drawn where that leaves the memory room enough to be seen.
    top_ = std::max<int64_t>(1, std::max(largest_, peak_));
    shows_budget_ = plan.budget_bytes() > 0 && plan.budget_bytes() / 2 <= top_;
    if (shows_budget_) top_ = std::max(top_, plan.budget_bytes());
    top_ += top_ / 16;
  }

  std::string Draw(absl::string_view job_name) {
    absl::StrAppendFormat(
        &svg_,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" "
        "height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" role=\"img\" "
        "aria-labelledby=\"title\" font-family=\"Helvetica, Arial, "
        "'DejaVu Sans', sans-serif\" font-size=\"11\" fill=\"#222\">\n",
        kWidth, kHeight, kWidth, kHeight);
    const std::string name =
        job_name.empty() ? "" : absl::StrCat(" of ", Xml(job_name, 60));
    absl::StrAppend(&svg_, "<title id=\"title\">Memory of a training step",
                    name, "</title>\n",
                    "<defs><pattern id=\"hatch\" width=\"6\" height=\"6\" "
                    "patternUnits=\"userSpaceOnUse\" "
                    "patternTransform=\"rotate(45)\"><rect width=\"6\" "
                    "height=\"6\" fill=\"#fff\"/><rect width=\"2\" "
                    "height=\"6\" fill=\"#ccc\"/></pattern></defs>\n"
                    "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n");
    DrawHead(name);
    DrawAxisOfBytes();
    DrawClasses();
    DrawLines();
    DrawMicrobatch();
    DrawAxisOfInstructions();
    DrawLegend();
    svg_ += "</svg>\n";
    return std::move(svg_);
  }

 private:
  double X(int64_t instruction) const {
    const double all = std::max<int64_t>(1, timeline_.num_instructions());
    const double width = kRight - kLeft - (has_gap_ ? kGap : 0);
    const double x = kLeft + width * static_cast<double>(instruction) / all;
    return has_gap_ && instruction >= microbatch_end_ ? x + kGap : x;
  }
  // Where a span that ends before `instruction` ends: left of the gap.
  double XEnd(int64_t instruction) const {
    return X(instruction) -
           (has_gap_ && instruction == microbatch_end_ ? kGap : 0);
  }
  double Y(int64_t bytes) const {
    return kBottom - (kBottom - kTop) * static_cast<double>(bytes) /
                         static_cast<double>(top_);
  }

  void Line(double x1, double y1, double x2, double y2, const char* style) {
    absl::StrAppendFormat(&svg_,
                          "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" "
                          "y2=\"%.1f\" %s/>\n",
                          x1, y1, x2, y2, style);
  }

  void DrawHead(const std::string& name) {
    svg_ += TextElement(kLeft, 30, " font-size=\"18\" font-weight=\"bold\"",
                        absl::StrCat("Memory of a training step", name));
    std::string facts = absl::StrCat(
        "policy ", Xml(plan_.policy()), ", ",
        plan_.fits() ? "fits its budget of " : "does not fit its budget of ",
        FormatBytes(plan_.budget_bytes()), "; peak ", FormatBytes(peak_));
    const double flops = plan_.model_flops() + plan_.recompute_flops();
    if (flops > 0) {
      absl::StrAppend(&facts, "; recompute ",
                      FormatPercent(plan_.recompute_flops() / flops),
                      " of all FLOPs");
    }
    svg_ += TextElement(kLeft, 50,
                        plan_.fits() ? " font-size=\"12\" fill=\"#555\""
                                     : " font-size=\"12\" fill=\"#c00\"",
                        facts);
  }

  void DrawAxisOfBytes() {
    const Ticks ticks = TicksFor(top_);
    for (int64_t bytes = 0; bytes <= top_; bytes += ticks.step) {
      Line(kLeft, Y(bytes), kRight, Y(bytes), "stroke=\"#e4e4e4\"");
      svg_ += TextElement(
          kLeft - 8, Y(bytes) + 4, " text-anchor=\"end\"",
          bytes == 0 ? "0"
                     : absl::StrCat(bytes / ticks.unit, " ", ticks.unit_name));
    }
    absl::StrAppendFormat(
        &svg_,
        "<text transform=\"translate(20 %.1f) rotate(-90)\" "
        "text-anchor=\"middle\" font-size=\"12\">bytes in use</text>\n",
        (kTop + kBottom) / 2);
  }

  // The outline of a class: along its upper edge, and back along its lower.
  void DrawClass(size_t index) {
    std::vector<std::array<double, 4>> steps;  // x, end, lower, upper
    bool is_used = false;
    for (size_t p = 0; p < stacks_.size(); ++p) {
      int64_t lower = 0;
      for (size_t c = 0; c < index; ++c) lower += stacks_[p][c];
      const int64_t upper = lower + stacks_[p][index];
      is_used = is_used || upper > lower;
      const v1::TimelinePoint& point = timeline_.points(static_cast<int>(p));
      const std::array<double, 4> step = {
          X(point.first_instruction()), XEnd(EndOf(point)), Y(lower), Y(upper)};
      // Equal neighbours are one.
      if (!steps.empty() && steps.back()[1] == step[0] &&
          steps.back()[2] == step[2] && steps.back()[3] == step[3]) {
        steps.back()[1] = step[1];
      } else {
        steps.push_back(step);
      }
    }
    if (!is_used) return;
    std::string path;
    for (size_t first = 0; first < steps.size();) {
      size_t end = first + 1;
      while (end < steps.size() && steps[end][0] == steps[end - 1][1]) ++end;
      absl::StrAppendFormat(&path, "M%.1f %.1f", steps[first][0],
                            steps[first][2]);
      for (size_t s = first; s < end; ++s) {
        absl::StrAppendFormat(&path, "V%.1fH%.1f", steps[s][3], steps[s][1]);
      }
      for (size_t s = end; s-- > first;) {
        absl::StrAppendFormat(&path, "V%.1fH%.1f", steps[s][2], steps[s][0]);
      }
      path += "Z";
      first = end;
    }
    absl::StrAppendFormat(&svg_,
                          "<path d=\"%s\" fill=\"%s\"><title>%s</title>"
                          "</path>\n",
                          path, kClasses[index].color, kClasses[index].name);
    used_.push_back(index);
  }

  void DrawClasses() {
    for (size_t c = 0; c < kNumClasses; ++c) DrawClass(c);
  }

  void DrawMicrobatch() {
    if (microbatch_begin_ < 0) return;
    const double begin = X(microbatch_begin_);
    const double end = XEnd(microbatch_end_);
    const double y = kTop - 12;
    absl::StrAppendFormat(&svg_,
                          "<path d=\"M%.1f %.1fV%.1fH%.1fV%.1f\" "
                          "fill=\"none\" stroke=\"#888\"/>\n",
                          begin, y + 5, y, end, y + 5);
    svg_ += TextElement(
        (begin + end) / 2, y - 5, " text-anchor=\"middle\" fill=\"#555\"",
        timeline_.num_microbatches() > 1
            ? absl::StrCat("one of ", timeline_.num_microbatches(),
                           " microbatches, all alike")
            : "the microbatch");
    if (!has_gap_) return;
    absl::StrAppendFormat(
        &svg_,
        "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
        "fill=\"url(#hatch)\"><title>%d more microbatches</title></rect>\n",
        end, kTop, kGap, kBottom - kTop, timeline_.num_microbatches() - 1);
    // Halfway up, on white, so that lines and hatching leave it readable.
    const std::string more =
        absl::StrCat(timeline_.num_microbatches() - 1, " more");
    const double length = kCharacter * static_cast<double>(more.size()) + 12;
    const double middle = (kTop + kBottom) / 2;
    absl::StrAppendFormat(
        &svg_,
        "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
        "fill=\"#fff\"/>\n"
        "<text transform=\"translate(%.1f %.1f) rotate(-90)\" "
        "text-anchor=\"middle\" fill=\"#555\">%s</text>\n",
        end, middle - length / 2, kGap, length, end + kGap / 2 + 4, middle,
        more);
  }

  void DrawLines() {
    if (peak_ > 0) {
      Line(kLeft, Y(peak_), kRight, Y(peak_),
           "stroke=\"#222\" stroke-dasharray=\"6 3\"");
    }
    if (shows_budget_) {
      Line(kLeft, Y(plan_.budget_bytes()), kRight, Y(plan_.budget_bytes()),
           "stroke=\"#c00\" stroke-width=\"1.5\"");
    }
  }

  void DrawAxisOfInstructions() {
    Line(kLeft, kBottom, kRight, kBottom, "stroke=\"#222\"");
    // Recompute: the darker, the more of the instructions there.
    constexpr double kStrip = kBottom + 6;
    for (const v1::TimelinePoint& point : timeline_.points()) {
      if (point.num_recompute() == 0) continue;
      has_recompute_ = true;
      const double share = static_cast<double>(point.num_recompute()) /
                           static_cast<double>(point.num_instructions());
      absl::StrAppendFormat(
          &svg_,
          "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" "
          "height=\"8\" fill=\"#d55e00\" "
          "opacity=\"%.2f\"/>\n",
          X(point.first_instruction()), kStrip,
          std::max(0.5, XEnd(EndOf(point)) - X(point.first_instruction())),
          0.3 + 0.7 * share);
    }
    // What runs.
    for (const Part& part : PartsOf(timeline_)) {
      const double begin = X(part.first_instruction);
      const double end = XEnd(part.first_instruction + part.num_instructions);
      if (end - begin < 1.5) continue;
      const std::string layers = LayersOf(part);
      absl::StrAppendFormat(
          &svg_,
          "<path d=\"M%.1f %.1fv-5H%.1fv5\" fill=\"none\" "
          "stroke=\"#888\"><title>%s%s</title></path>\n",
          begin + 0.5, kBottom + 27, end - 0.5, Xml(part.name),
          layers.empty() ? "" : absl::StrCat(", layers ", layers));
      const std::string label = LabelWithin(
          part, static_cast<size_t>(std::max(0.0, (end - begin) / kCharacter)));
      if (label.empty()) continue;
      svg_ += TextElement((begin + end) / 2, kBottom + 41,
                          " text-anchor=\"middle\"", Xml(label));
    }
    // How many instructions that is.
    const int64_t step = RoundStep(timeline_.num_instructions(), 10);
    for (int64_t n = 0; n <= timeline_.num_instructions(); n += step) {
      const double x = n == timeline_.num_instructions() ? XEnd(n) : X(n);
      Line(x, kBottom + 52, x, kBottom + 56, "stroke=\"#222\"");
      svg_ += TextElement(x, kBottom + 69, " text-anchor=\"middle\"",
                          absl::StrCat(n));
    }
    Line(kLeft, kBottom + 52, kRight, kBottom + 52, "stroke=\"#222\"");
    svg_ += TextElement((kLeft + kRight) / 2, kBottom + 90,
                        " text-anchor=\"middle\" font-size=\"12\"",
                        "instructions of a step, in order");
  }

  void DrawLegend() {
    const double x = kRight + 20;
    double y = kTop + 8;
    svg_ += TextElement(kWidth - 12, y - 20,
                        " text-anchor=\"end\" fill=\"#555\"", "at most");
    for (size_t n = used_.size(); n-- > 0;) {
      const ClassStyle& style = kClasses[used_[n]];
      absl::StrAppendFormat(&svg_,
                            "<rect x=\"%.1f\" y=\"%.1f\" width=\"12\" "
                            "height=\"12\" fill=\"%s\"/>\n",
                            x, y - 10, style.color);
      svg_ += TextElement(x + 20, y, "", style.name);
      // Some are too thin to be seen, or to be read off.
      int64_t most = 0;
      for (const Stack& stack : stacks_) {
        most = std::max(most, stack[used_[n]]);
      }
      svg_ += TextElement(kWidth - 12, y, " text-anchor=\"end\" fill=\"#555\"",
                          FormatBytes(most));
      y += 20;
    }
    y += 8;
    if (has_recompute_) {
      absl::StrAppendFormat(&svg_,
                            "<rect x=\"%.1f\" y=\"%.1f\" width=\"12\" "
                            "height=\"6\" fill=\"#d55e00\"/>\n",
                            x, y - 7);
      svg_ += TextElement(x + 20, y, "", "computes again");
      y += 20;
    }
    if (peak_ > 0) {
      Line(x, y - 4, x + 14, y - 4, "stroke=\"#222\" stroke-dasharray=\"6 3\"");
      svg_ += TextElement(x + 20, y, "",
                          absl::StrCat("peak: ", FormatBytes(peak_)));
      svg_ +=
          TextElement(x + 20, y + 14, " fill=\"#555\"", "(arenas and runtime)");
      y += 34;
    }
    if (plan_.budget_bytes() > 0) {
      Line(x, y - 4, x + 14, y - 4, "stroke=\"#c00\" stroke-width=\"1.5\"");
      svg_ += TextElement(
          x + 20, y, "",
          absl::StrCat("budget: ", FormatBytes(plan_.budget_bytes())));
      if (!shows_budget_) {
        svg_ += TextElement(x + 20, y + 14, " fill=\"#555\"",
                            "(above the picture)");
      }
    }
  }

  const v1::Timeline& timeline_;
  const v1::Plan& plan_;
  std::vector<Stack> stacks_;  // by point
  int64_t largest_ = 0;
  int64_t peak_ = 0;  // what is compared with the budget
  int64_t top_ = 1;
  int64_t microbatch_begin_ = -1;
  int64_t microbatch_end_ = -1;
  bool has_gap_ = false;
  bool shows_budget_ = false;
  bool has_recompute_ = false;
  std::vector<size_t> used_;  // classes
  std::string svg_;
};

}  // namespace

std::string TimelineSvg(const v1::Timeline& timeline, const v1::Plan& plan,
                        absl::string_view job_name) {
  return Picture(timeline, plan).Draw(job_name);
}

}  // namespace ebb
