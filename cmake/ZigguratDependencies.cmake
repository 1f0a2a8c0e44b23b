# Everything comes from Debian 12's packages (see scripts/install-dependencies.sh).
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED)
find_package(absl REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED)
find_package(Protobuf REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(GTest REQUIRED)
find_package(rapidcheck CONFIG REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(SENTENCEPIECE REQUIRED IMPORTED_TARGET sentencepiece)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(HTTPLIB REQUIRED IMPORTED_TARGET cpp-httplib)
if(ZIGGURAT_BENCHMARKS)
  find_package(benchmark REQUIRED)
endif()

if(ZIGGURAT_DECODER)
  # libtorch: attention of prompts on a GPU, with ZIGGURAT_TORCH_CUDA. Else no program of ours has it, but
  # the test of the products that such a build takes from it: Debian's will do, where it is installed.
  if(ZIGGURAT_TORCH_CUDA)
    set(ziggurat_torch_where REQUIRED)
  else()
    set(ziggurat_torch_where QUIET PATHS /usr NO_DEFAULT_PATH)
  endif()
  # It chooses flags and cards for all CUDA code of a project. In a function they stay its own: ours are in
  # ZigguratCuda.cmake, which comes first because CUDA must be enabled in a file.
  function(ziggurat_find_torch)
    unset(CMAKE_CUDA_ARCHITECTURES)
    set(TORCH_CUDA_ARCH_LIST 9.0)  # anything, else it looks for cards
    find_package(Torch ${ziggurat_torch_where})
  endfunction()
  ziggurat_find_torch()
  if(TARGET torch)
    add_library(ziggurat_torch INTERFACE)
    # Python's libtorch shows parts of another libstdc++ (std::filesystem), some of which end in a call
    # of nothing: ours is to be asked first.
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      target_link_libraries(ziggurat_torch INTERFACE stdc++)
    endif()
    target_link_libraries(ziggurat_torch INTERFACE torch)
  endif()

  # oneDNN: weights packed once for the CPU's matrix products. A libtorch that does not load it has one of
  # its own inside, mostly of another version. The inline functions of oneDNN's C++ header would then be in
  # the program twice, and ours answer for libtorch's: so at::linear is to use its own, and we use none.
  set(ZIGGURAT_HAS_ONEDNN ON)
  if(ZIGGURAT_TORCH_CUDA AND TARGET torch_cpu AND CMAKE_READELF)
    get_target_property(torch_cpu_file torch_cpu LOCATION)
    execute_process(COMMAND ${CMAKE_READELF} -d ${torch_cpu_file}
      OUTPUT_VARIABLE needed RESULT_VARIABLE status ERROR_QUIET)
    if(NOT status EQUAL 0)
      message(WARNING "whether ${torch_cpu_file} has a oneDNN of its own could not be seen")
    elseif(NOT needed MATCHES "libdnnl")
      message(STATUS "oneDNN is left out: ${torch_cpu_file} does not load it, so has one of its own")
      set(ZIGGURAT_HAS_ONEDNN OFF)
    endif()
  endif()
  if(ZIGGURAT_HAS_ONEDNN)
    # Debian's dnnl-config.cmake asks for OpenCL headers, which we do not need, so look it up here.
    find_path(DNNL_INCLUDE_DIR dnnl.hpp REQUIRED)
    find_library(DNNL_LIBRARY dnnl REQUIRED)
  endif()
endif()
