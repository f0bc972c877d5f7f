# Removes a project's directory: one that a sync of this account has made and no run here names. POSIX sh; target_directory.sh stands
# before it; run as:
#   sh -c TEXT NAME DIRECTORY MANIFEST RUNS JSON DRY
# JSON is the directory as a run's specification, which is ASCII, has it. With DRY nothing is removed.
# Prints why it stays, if it does. Ends 0, or 3 with one line on stderr.
[ -f "$dir/$1" ] && [ ! -L "$dir/$1" ] && [ -O "$dir/$1" ] || fail "$dir has no manifest of a sync"
for spec in "$HOME/$2"/*/spec.json; do
  ! grep -qsF -e "\"$dir" -e "\"$3" -e "\"${3%/*}\"" -- "$spec" || { spec=${spec%/*}; printf 'used by run %s' "${spec##*/}"; exit 0; }
done
# What is mounted in it, also of the same file system, is somebody's data: rm would take that first. The kernel writes blanks as numbers.
real=$(cd -P -- "$dir" && pwd | sed 's/\\/\\134/g; s/ /\\040/g; s/	/\\011/g') || fail "cannot read $dir"
while read -r _ _ _ _ at _; do
  case $at in "$real"/*) printf 'something is mounted at %s' "$at"; exit 0 ;; esac
done </proc/self/mountinfo
[ "$4" ] && exit 0
cd / && said=$(rm -rf -- "$dir" 2>&1) || fail "cannot remove $dir: ${said##*: }"
