#include "proto/scalar_text.h"

#include <algorithm>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/charconv.h"
#include "absl/strings/str_cat.h"

namespace ebb {

namespace {

using Wide = unsigned __int128;

// A decimal number: digits * 10^exponent, no zeros at either end of digits;
// empty digits: 0.
struct Decimal {
  bool negative = false;
  std::string digits;
  int64_t exponent = 0;
};

// Exponents beyond it are far outside every type; it keeps sums in range.
constexpr int64_t kHugeExponent = 1000000000;

template <typename T>
Scalar<T> Wrong(std::string rule, std::string fix) {
  return {.value = {}, .rule = std::move(rule), .fix = std::move(fix)};
}

// Says why text is no number, for the forms that other readers take.
Scalar<Decimal> NotANumber(absl::string_view text) {
  const std::string lower = absl::AsciiStrToLower(text);
  absl::string_view bare = lower;
  if (!bare.empty() && (bare[0] == '+' || bare[0] == '-')) {
    bare.remove_prefix(1);
  }
  const auto has = [&](char c) {
    return bare.find(c) != absl::string_view::npos;
  };
  const bool starts_with_digit = !bare.empty() && absl::ascii_isdigit(bare[0]);
  if (bare == "nan" || bare == ".nan" || bare == "inf" || bare == ".inf" ||
      bare == "infinity") {
    return Wrong<Decimal>("must be a finite number", "write digits");
  }
  if (starts_with_digit && bare.size() > 1 && bare[0] == '0' &&
      (bare[1] == 'x' || bare[1] == 'o' || bare[1] == 'b')) {
    return Wrong<Decimal>("numbers are decimal",
                          "write the value in decimal digits");
  }
  if (starts_with_digit && has('_')) {
    return Wrong<Decimal>("numbers have no underscores", "take them out");
  }
  if (starts_with_digit && has(':')) {
    return Wrong<Decimal>("numbers have no colons",
                          "write the value in decimal digits");
  }
  if (starts_with_digit && has(',')) {
    return Wrong<Decimal>("numbers have no commas",
                          "write a point before decimals");
  }
  return Wrong<Decimal>("is not a number", "write decimal digits, as in 0.5");
}

Scalar<Decimal> ParseDecimal(absl::string_view text) {
  Decimal decimal;
  size_t i = 0;
  if (i < text.size() && (text[i] == '+' || text[i] == '-')) {
    decimal.negative = text[i++] == '-';
  }
  const size_t whole_begin = i;
  while (i < text.size() && absl::ascii_isdigit(text[i])) {
    decimal.digits += text[i++];
  }
  const size_t whole_digits = i - whole_begin;
  int64_t fraction_digits = 0;
  if (i < text.size() && text[i] == '.') {
    for (++i; i < text.size() && absl::ascii_isdigit(text[i]); ++i) {
      decimal.digits += text[i];
      ++fraction_digits;
    }
  }
  if (decimal.digits.empty()) return NotANumber(text);
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    bool negative = false;
    if (i < text.size() && (text[i] == '+' || text[i] == '-')) {
      negative = text[i++] == '-';
    }
    if (i == text.size() || !absl::ascii_isdigit(text[i])) {
      return NotANumber(text);
    }
    for (; i < text.size() && absl::ascii_isdigit(text[i]); ++i) {
      decimal.exponent =
          std::min(decimal.exponent * 10 + (text[i] - '0'), kHugeExponent);
    }
    if (negative) decimal.exponent = -decimal.exponent;
  }
  if (i != text.size()) return NotANumber(text);
  if (whole_digits > 1 && text[whole_begin] == '0') {
    return Wrong<Decimal>(
        "numbers have no leading zeros (some readers take them for octal)",
        "take the zeros out");
  }
  decimal.exponent -= fraction_digits;
  while (!decimal.digits.empty() && decimal.digits.back() == '0') {
    decimal.digits.pop_back();
    ++decimal.exponent;
  }
  decimal.digits.erase(0, decimal.digits.find_first_not_of('0'));
  if (decimal.digits.empty()) return {.value = {}, .rule = "", .fix = ""};
  return {.value = decimal, .rule = "", .fix = ""};
}

// digits * 10^exponent * factor, rounded down. exact: the result was whole.
// fits: it is below 2^64 (and the text has few enough digits to tell).
struct Product {
  uint64_t value = 0;
  bool exact = true;
  bool fits = true;
};

Product Multiply(const Decimal& decimal, uint64_t factor) {
  if (decimal.digits.empty()) return {};
  // 10^24 * 2^42 is below 2^128.
  constexpr int64_t kMaxDigits = 24;
  const int64_t num_digits = decimal.digits.size();
  if (num_digits + decimal.exponent > kMaxDigits) return {.fits = false};
  if (num_digits + decimal.exponent < -kMaxDigits) return {.exact = false};
  // Digits beyond the precision make the value not whole, and no more.
  const std::string digits = decimal.digits.substr(0, kMaxDigits);
  int64_t exponent = decimal.exponent + (num_digits - int64_t(digits.size()));
  Product product;
  product.exact = int64_t(digits.size()) == num_digits;
  Wide value = 0;
  for (char c : digits) value = value * 10 + (c - '0');
  for (; exponent > 0; --exponent) value *= 10;
  value *= factor;
  for (; exponent < 0; ++exponent) {
    product.exact &= value % 10 == 0;
    value /= 10;
  }
  product.fits = value <= std::numeric_limits<uint64_t>::max();
  product.value = static_cast<uint64_t>(value);
  return product;
}

constexpr char kWholeRule[] = "must be a whole number";

struct Unit {
  absl::string_view name;
  uint64_t factor;
};

constexpr Unit kByteUnits[] = {{"KiB", uint64_t{1} << 10},
                               {"MiB", uint64_t{1} << 20},
                               {"GiB", uint64_t{1} << 30},
                               {"TiB", uint64_t{1} << 40}};

constexpr Unit kDurationUnits[] = {{"ms", 1000000},
                                   {"s", 1000000000},
                                   {"m", 60000000000},
                                   {"h", 3600000000000}};

// Splits "1.5 GiB" into "1.5" and "GiB".
std::pair<absl::string_view, absl::string_view> SplitUnit(
    absl::string_view text) {
  size_t end = text.size();
  while (end > 0 && absl::ascii_isalpha(text[end - 1])) --end;
  return {absl::StripTrailingAsciiWhitespace(text.substr(0, end)),
          text.substr(end)};
}

}  // namespace

Scalar<int64_t> ParseInt64(absl::string_view text) {
  const Scalar<Decimal> decimal = ParseDecimal(text);
  if (!decimal.ok()) return Wrong<int64_t>(decimal.rule, decimal.fix);
  const Product product = Multiply(decimal.value, 1);
  const uint64_t limit =
      decimal.value.negative ? uint64_t{1} << 63 : (uint64_t{1} << 63) - 1;
  if (!product.fits || product.value > limit) {
    return Wrong<int64_t>("is beyond 64-bit integers", "");
  }
  if (!product.exact) return Wrong<int64_t>(kWholeRule, "");
  // Two's complement: the negation of 2^63 is itself.
  return {.value = static_cast<int64_t>(
              decimal.value.negative ? 0 - product.value : product.value),
          .rule = "",
          .fix = ""};
}

Scalar<uint64_t> ParseUint64(absl::string_view text) {
  const Scalar<Decimal> decimal = ParseDecimal(text);
  if (!decimal.ok()) return Wrong<uint64_t>(decimal.rule, decimal.fix);
  const Product product = Multiply(decimal.value, 1);
  if (decimal.value.negative) {
    return Wrong<uint64_t>("must not be negative", "");
  }
  if (!product.fits) {
    return Wrong<uint64_t>("is beyond unsigned 64-bit integers", "");
  }
  if (!product.exact) return Wrong<uint64_t>(kWholeRule, "");
  return {.value = product.value, .rule = "", .fix = ""};
}

Scalar<double> ParseDouble(absl::string_view text) {
  const Scalar<Decimal> decimal = ParseDecimal(text);
  if (!decimal.ok()) return Wrong<double>(decimal.rule, decimal.fix);
  if (decimal.value.digits.empty()) return {};
  absl::string_view number = text;
  if (number[0] == '+') number.remove_prefix(1);
  double value = 0;
  const absl::from_chars_result result =
      absl::from_chars(number.data(), number.data() + number.size(), value);
  if (result.ec == std::errc::result_out_of_range) {
    const bool large = value > 1 || value < -1;
    return Wrong<double>(
        large ? "is too large for a double" : "is too small for a double",
        large ? "write a finite number" : "write 0");
  }
  return {.value = value, .rule = "", .fix = ""};
}

Scalar<int64_t> ParseByteSize(absl::string_view text) {
  const auto [number, unit] = SplitUnit(text);
  uint64_t factor = 1;
  if (!unit.empty()) {
    const auto* found =
        std::find_if(std::begin(kByteUnits), std::end(kByteUnits),
                     [&](const Unit& u) { return u.name == unit; });
    if (found == std::end(kByteUnits)) {
      const char letter = absl::ascii_toupper(unit[0]);
      for (const Unit& u : kByteUnits) {
        if (u.name[0] != letter || !ParseDecimal(number).ok()) continue;
        return Wrong<int64_t>("sizes are plain bytes or KiB, MiB, GiB, TiB",
                              absl::StrCat("write ", number, u.name));
      }
      return Wrong<int64_t>("sizes are plain bytes or KiB, MiB, GiB, TiB",
                            "write it as in 1.5GiB");
    }
    factor = found->factor;
  }
  const Scalar<Decimal> decimal = ParseDecimal(number);
  if (!decimal.ok()) return Wrong<int64_t>(decimal.rule, decimal.fix);
  const Product product = Multiply(decimal.value, factor);
  constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
  if (!product.fits || product.value > kMax) {
    return Wrong<int64_t>("is beyond 64-bit integers", "");
  }
  if (factor == 1 && !product.exact) {
    return Wrong<int64_t>("must be whole bytes", "");
  }
  const int64_t value = static_cast<int64_t>(product.value);
  return {
      .value = decimal.value.negative ? -value : value, .rule = "", .fix = ""};
}

Scalar<google::protobuf::Duration> ParseDuration(absl::string_view text) {
  using google::protobuf::Duration;
  const auto [number, unit] = SplitUnit(text);
  const auto* found =
      std::find_if(std::begin(kDurationUnits), std::end(kDurationUnits),
                   [&, &u = unit](const Unit& d) { return d.name == u; });
  const Scalar<Decimal> decimal = ParseDecimal(number);
  if (found == std::end(kDurationUnits) || !decimal.ok()) {
    return Wrong<Duration>("durations are a number with ms, s, m or h",
                           unit.empty() && decimal.ok()
                               ? absl::StrCat("write ", number, "s")
                               : "write it as in 90s or 1.5h");
  }
  const Product product = Multiply(decimal.value, found->factor);
  if (!product.fits ||
      product.value > uint64_t(std::numeric_limits<int64_t>::max())) {
    return Wrong<Duration>("is longer than 292 years", "");
  }
  if (!product.exact) {
    return Wrong<Duration>("is finer than a nanosecond", "");
  }
  const int64_t sign = decimal.value.negative ? -1 : 1;
  Duration duration;
  duration.set_seconds(sign * int64_t(product.value / 1000000000));
  duration.set_nanos(sign * int32_t(product.value % 1000000000));
  return {.value = duration, .rule = "", .fix = ""};
}

}  // namespace ebb
