#!/bin/sh
# Checks that the object of an instruction-set unit shares nothing with the rest of the program. Owns the rule, refuses:
#   - weak or unique symbols: the linker keeps one copy for all units, perhaps the one compiled for a newer processor;
#   - references to the C++ library: its inline functions would have been compiled here with this unit's instructions;
#   - constructors that run at load, before anybody asked what the processor can do.
# Usage: check_symbols.sh OBJECT...   Prints what it found and exits 1; silent and 0 when all is well.
set -u
[ $# -gt 0 ] || { echo "usage: check_symbols.sh OBJECT..." >&2; exit 2; }
bad=0
for object in "$@"; do
    symbols=$(nm -C "$object") || exit 2
    mangled=$(nm "$object") || exit 2
    weak=$(printf '%s\n' "$symbols" | grep -E '^[0-9a-f ]+ [WwVvu] ')
    library=$(printf '%s\n' "$mangled" | grep -E '^ +U (_Z|__cxa|__gxx|__dynamic_cast)')
    loaded=$(readelf -SW "$object" | grep -E '\.(init_array|ctors|preinit_array)')
    for found in "weak symbols:$weak" "references to the C++ library:$library" "constructors at load:$loaded"; do
        [ -n "${found#*:}" ] || continue
        echo "$object: ${found%%:*}:"
        echo "${found#*:}"
        bad=1
    done
done
exit $bad
