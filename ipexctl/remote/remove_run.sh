# Removes the directory of a run, and only such a one. POSIX sh; run as: sh -c TEXT NAME DIRECTORY SPEC ROLE AGENT PART
# A guard that writes its last word there meanwhile is waited for.
test -L "$1" && exit 1
test -e "$1" || exit 0 # its guard has removed it
test -f "$1/$2" || test -f "$1/$3" || test -f "$1/$4" || case "$(ls -A -- "$1" 2>/dev/null)" in
""|"$5"put-*) ;;
*) exit 0 ;;
esac
for wait in 0.2 1 2; do
  rm -rf -- "$1" 2>/dev/null && exit 0
  sleep $wait
done
exec rm -rf -- "$1"
