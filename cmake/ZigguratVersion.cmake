# Writes OUT with version and commit. Runs at every build, so that the commit is never stale; the
# file changes only when they do.
execute_process(
  COMMAND git -C ${SOURCE_DIR} rev-parse --short HEAD
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  set(commit "unknown")
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT
"#define ZIGGURAT_VERSION \"${VERSION}\"\n#define ZIGGURAT_COMMIT \"${commit}\"\n")
