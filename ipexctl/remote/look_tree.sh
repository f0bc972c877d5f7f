# The state of a directory before something is sent there: its absolute path, "mark" or "", the mark, then a
# record for each entry. POSIX sh with find; target_directory.sh stands before it; run as:
#   sh -c TEXT NAME DIRECTORY [SEND]
if [ ! -e "$dir" ]; then
  printf '%s\0\0\0' "$dir"
  exit 0
fi
[ -d "$dir" ] || fail "$dir is not a directory"
cd "$dir" 2>/dev/null || fail "cannot enter $dir: permission denied"
[ -z "$1" ] || refuse_strangers
printf '%s\0' "$dir"
if [ -f .ipexctl-sync.json ] && [ ! -L .ipexctl-sync.json ] && [ -O .ipexctl-sync.json ]; then
  printf 'mark\0'
  cat .ipexctl-sync.json
else
  printf '\0'
fi
printf '\0'
# type, mode, size, whole seconds of change, name, link target. A find that knows -printf may still miss something.
find . -mindepth 1 -name '.ipexctl-part-*' -prune -printf 'p 0 0 0\0%P\0\0' -o -printf '%y %m %s %Ts\0%P\0%l\0' 2>/dev/null ||
  find . -prune -printf '' 2>/dev/null && exit 0
find . -name '.ipexctl-part-*' -prune -o ! -name . -exec sh -c '  # busybox
  for f do
    t=f; [ -d "$f" ] && t=d; l=; if [ -L "$f" ]; then t=l; l=$(readlink "$f"; echo .); l=${l%??}; fi
    printf "%s %s\0%s\0%s\0" $t "$(stat -c "%a %s %Y" "$f")" "${f#./}" "$l"
  done' sh {} +
