# Removes a project's directory: one that a sync of this account has made and no run here names. POSIX sh; target_directory.sh stands
# before it; run as:
#   sh -c TEXT NAME DIRECTORY MANIFEST RUNS JSON DRY
# JSON is the directory as a run's specification, which is ASCII, has it. With DRY nothing is removed.
# Prints why it stays, if it does. Ends 0, or 3 with one line on stderr.
[ -f "$dir/$1" ] && [ ! -L "$dir/$1" ] && [ -O "$dir/$1" ] || fail "$dir has no manifest of a sync"
for spec in "$HOME/$2"/*/spec.json; do
  ! grep -qsF -e "\"$dir" -e "\"$3" -e "\"${3%/*}\"" -- "$spec" || { spec=${spec%/*}; printf 'used by run %s' "${spec##*/}"; exit 0; }
done
mounts=$(list_mounts) || exit 3
[ ! "$mounts" ] || { printf 'something is mounted at %s' "$dir/${mounts%%
*}"; exit 0; }
[ "$4" ] && exit 0
# What was looked at goes: another user, who may write above, can put a link in the place of $dir meanwhile.
[ ! -L "$dir" ] && cd -P -- "$dir" && [ -f "$1" ] && [ ! -L "$1" ] && [ -O "$1" ] || fail "$dir has no manifest of a sync"
said=$(find . ! -name . -prune -exec rm -rf -- {} + 2>&1 && cd / && rmdir -- "$dir" 2>&1) || fail "cannot remove $dir: ${said##*: }"
