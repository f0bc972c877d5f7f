# Removes the directory of a run, and only such a one. POSIX sh; run as: sh -c TEXT NAME DIRECTORY SPEC ROLE AGENT PART
# A guard that writes its last word there meanwhile is waited for.
test -L "$1" && exit 1
test -e "$1" || exit 0 # its guard has removed it
test -f "$1/$2" || test -f "$1/$3" || test -f "$1/$4" || case "$(ls -A -- "$1" 2>/dev/null)" in
""|"$5"put-*) ;;
*) exit 0 ;;
esac
real=$(cd -P -- "$1" && pwd | sed 's/\\/\\134/g; s/ /\\040/g; s/	/\\011/g') || exit 1
while read -r _ _ _ _ at _; do # somebody's data: rm would take that first
  case $at in "$real"/*) exit 1 ;; esac
done </proc/self/mountinfo
for wait in 0.2 1 2; do
  rm -rf -- "$1" 2>/dev/null && exit 0
  sleep $wait
done
exec rm -rf -- "$1"
