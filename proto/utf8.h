// What texts of a spec are made of: well-formed UTF-8 without control
// characters.
#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace ebb {

// Bytes of the first character of text; 0 if it is not well-formed UTF-8
// (overlong forms and surrogates are not) or text is empty.
size_t Utf8CharacterBytes(absl::string_view text);

// C0, DEL and C1 control characters. REQUIRES: well-formed.
bool IsControlCharacter(absl::string_view character);

// Position of the first byte that is not well-formed UTF-8; npos if all is.
size_t FindInvalidUtf8(absl::string_view text);

// Position of the first control character; npos if there is none. REQUIRES:
// well-formed.
size_t FindControlCharacter(absl::string_view text);

}  // namespace ebb
