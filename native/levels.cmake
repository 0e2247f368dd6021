# The instruction-set units of the target processor and the flags each is compiled with: LEVEL_UNITS. Owns the list that
# native/core/cpu.cc checks a processor against: a flag added here is a feature added there. FINBACK_FAST is the
# optimisation of the levels above scalar: at -O3 the scalar level takes three times as long to compile, and it is for
# reading and comparing. Also the warnings and the arithmetic flags of the whole project: FINBACK_FLAGS.

# contraction off: every fma in the project is written as one (docs/exactness.md)
set(FINBACK_FLAGS -Wall -Wextra -Wpedantic -Wconversion -Wno-sign-conversion -ffp-contract=off -fno-math-errno
    -fvisibility=hidden)

set(KERNELS ${CMAKE_CURRENT_LIST_DIR}/kernels)
set(LEVEL_UNITS ${KERNELS}/isa_scalar.cc)
function(level_unit name)
  set_source_files_properties(${KERNELS}/isa_${name}.cc PROPERTIES COMPILE_OPTIONS "${FINBACK_FAST};${ARGN}")
  set(LEVEL_UNITS ${LEVEL_UNITS} ${KERNELS}/isa_${name}.cc PARENT_SCOPE)
endfunction()

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(AVX2 -mavx2 -mfma -mf16c)
  level_unit(avx2 ${AVX2})
  # GCC 12 takes the undefined third operand of its own 512-bit intrinsics for a mistake of ours.
  level_unit(avx512 ${AVX2} -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni
             -Wno-uninitialized -Wno-maybe-uninitialized)
else()
  level_unit(neon -march=armv8.2-a+dotprod)
endif()
