# cmake -DSOURCE=DIR -DOUT=FILE -P revision.cmake
# Writes OUT, the revision of the source in DIR (see revision.h). A file that
# says so already stays as it is, so that nothing is compiled again.
set(revision unknown)
find_program(GIT git)
if(GIT)
  # An archive unpacked in a folder of another checkout is not of its revision:
  # there the prefix is that folder.
  execute_process(
    COMMAND ${GIT} -C ${SOURCE} rev-parse --show-prefix
    RESULT_VARIABLE failed OUTPUT_VARIABLE prefix ERROR_QUIET
    OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(failed EQUAL 0 AND prefix STREQUAL "")
    execute_process(
      COMMAND ${GIT} --no-optional-locks -C ${SOURCE} describe --always --dirty
              --abbrev=40 --exclude=*
      RESULT_VARIABLE failed OUTPUT_VARIABLE found ERROR_QUIET
      OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(failed EQUAL 0)
      set(revision ${found})
    endif()
  endif()
endif()
configure_file(${CMAKE_CURRENT_LIST_DIR}/revision.cc.in ${OUT} @ONLY)
