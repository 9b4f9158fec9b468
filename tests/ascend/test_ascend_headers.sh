#!/bin/sh
# Rows of plugins/common/acl_ops.def against the vendor's headers, where an installation has them: each operator that it
# declares has the row's arguments, const apart, which binary code does not see; those that are NEEDED are declared.
. tests/build/lib.sh
skip() {
    echo "SKIPPED rows of operators against the vendor's headers: $1"
    finish
}
cxx=${CXX:-g++}
home=${ASCEND_HOME_PATH:-}
[ -n "$home" ] || skip 'ASCEND_HOME_PATH is not set'
command -v "$cxx" >/dev/null 2>&1 || skip "$cxx is not installed"
includes=$(for folder in "$home"/include "$home"/*-linux/include "$home"/opp/built-in/op_impl/ai_core/tbe/op_api/include; do
    [ -d "$folder" ] && printf ' -I%s' "$folder"
done)
headers=$(for folder in $(echo "$includes" | sed 's/ -I/ /g'); do
    find -H "$folder"/aclnnop -maxdepth 2 -name '*.h' 2>/dev/null
done | sort -u)
[ -n "$headers" ] || skip "$home has no headers of operators"

rows=$(sed -n 's/^ACL_OP(\([A-Za-z0-9]*\), \([A-Z]*\),.*/\1 \2/p' plugins/common/acl_ops.def)
printf '%s\n' '#include <type_traits>' '#include <acl/acl.h>' >"$tmp/rows.cpp"
echo "$rows" | while read -r name need; do
    # shellcheck disable=SC2086 # our names and the vendor's hold no spaces
    header=$(grep -lw "${name}GetWorkspaceSize" $headers | head -n 1)
    if [ -n "$header" ]; then
        echo "#include \"$header\"" >>"$tmp/rows.cpp"
        echo "#define HAS_$name true" >>"$tmp/rows.cpp"
    else
        echo "aclnnStatus ${name}GetWorkspaceSize();" >>"$tmp/none"
        echo "#define HAS_$name false" >>"$tmp/rows.cpp"
        [ "$need" = NEEDED ] && echo "$name" >>"$tmp/missing"
        echo "SKIPPED the row of $name: no header declares it"
    fi
done
touch "$tmp/none" "$tmp/missing"
cat "$tmp/none" - >>"$tmp/rows.cpp" <<'E2'
template <typename T> struct plain { using type = T; };
template <typename T> struct plain<const T *> { using type = T *; };
template <typename F> struct bare;
template <typename R, typename... A> struct bare<R(A...)> { using type = R(typename plain<A>::type...); };
#define TYPE_in const aclTensor *
#define TYPE_in_optional const aclTensor *
#define TYPE_out aclTensor *
#define TYPE_result const aclTensor *
#define TYPE_result_optional const aclTensor *
#define TENSOR(role, name) TYPE_##role name,
#define VALUE(type, name) type name,
#define ACL_OP(name, need, chips, known, types, strides, arguments)                                                    \
    static_assert(!HAS_##name ||                                                                                       \
                      std::is_same<bare<decltype(name##GetWorkspaceSize)>::type,                                       \
                                   bare<aclnnStatus(arguments(TENSOR, VALUE) uint64_t *, aclOpExecutor **)>::type>::value, \
                  #name);
#include "acl_ops.def"
E2

# shellcheck disable=SC2317 # check calls them
nothing_missing() {
    cat "$tmp/missing"
    [ ! -s "$tmp/missing" ]
}
# shellcheck disable=SC2317
compiles() { # FOLDER of acl_ops.def
    # shellcheck disable=SC2086
    "$cxx" -std=c++17 -fsyntax-only -I"$1" $includes "$tmp/rows.cpp"
}
# shellcheck disable=SC2317
is_refused() {
    ! compiles "$1"
}
check 'the headers declare all operators that are needed' nothing_missing
check 'all rows have the arguments of the headers' compiles plugins/common
mkdir "$tmp/wrong"
sed 's/VALUE(double, epsilon)/VALUE(float, epsilon)/' plugins/common/acl_ops.def >"$tmp/wrong/acl_ops.def"
check 'a row with another type is refused' is_refused "$tmp/wrong"
finish
