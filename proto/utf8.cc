#include "proto/utf8.h"

namespace ebb {

// Source: RFC 3629, section 4.
size_t Utf8CharacterBytes(absl::string_view text) {
  if (text.empty()) return 0;
  const auto byte = [&](size_t i) -> unsigned char { return text[i]; };
  const auto continues = [&](size_t i, unsigned low = 0x80,
                             unsigned high = 0xbf) {
    return i < text.size() && byte(i) >= low && byte(i) <= high;
  };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first < 0xc2) return 0;
  if (first < 0xe0) return continues(1) ? 2 : 0;
  if (first < 0xf0) {
    const unsigned low = first == 0xe0 ? 0xa0 : 0x80;
    const unsigned high = first == 0xed ? 0x9f : 0xbf;
    return continues(1, low, high) && continues(2) ? 3 : 0;
  }
  if (first < 0xf5) {
    const unsigned low = first == 0xf0 ? 0x90 : 0x80;
    const unsigned high = first == 0xf4 ? 0x8f : 0xbf;
    return continues(1, low, high) && continues(2) && continues(3) ? 4 : 0;
  }
  return 0;
}

bool IsControlCharacter(absl::string_view character) {
  const unsigned char first = character[0];
  if (character.size() == 1) return first < 0x20 || first == 0x7f;
  return character.size() == 2 && first == 0xc2 &&
         static_cast<unsigned char>(character[1]) < 0xa0;
}

size_t FindInvalidUtf8(absl::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t length = Utf8CharacterBytes(text.substr(i));
    if (length == 0) return i;
    i += length;
  }
  return absl::string_view::npos;
}

size_t FindControlCharacter(absl::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t length = Utf8CharacterBytes(text.substr(i));
    if (length == 0) return i;
    if (IsControlCharacter(text.substr(i, length))) return i;
    i += length;
  }
  return absl::string_view::npos;
}

}  // namespace ebb
