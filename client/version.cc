// See version.h; the build defines EBB_VERSION.
#include "client/version.h"

namespace ebb {

const char* const kVersion = EBB_VERSION;

}  // namespace ebb
