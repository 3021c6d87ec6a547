// The memory of a step over its instructions, drawn: as text for a terminal and
// as a picture (SVG). Pure.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace ebb {

namespace v1 {
class Plan;
class Timeline;
}  // namespace v1

// How many points a picture can show: what to ask the coordinator for.
inline constexpr int kTimelinePoints = 1000;

// A few rows of letters, a letter a class, each line within `columns` (at least
// 40). Plain ASCII. Each column shows its largest moment.
std::string TimelineText(const v1::Timeline& timeline, int columns);

// A standalone SVG document: classes stacked, the peak's and the budget's
// line, spans with recompute marked. `job_name` is anybody's text.
std::string TimelineSvg(const v1::Timeline& timeline, const v1::Plan& plan,
                        absl::string_view job_name);

}  // namespace ebb
