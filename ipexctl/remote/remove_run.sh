# Removes the directory of a run, and only such a one. POSIX sh; stands behind target_directory.sh, with the words SPEC ROLE
# AGENT PART. A guard that writes its last word there meanwhile is waited for.
test -e "$dir" || exit 0 # its guard has removed it
test -f "$dir/$1" || test -f "$dir/$2" || test -f "$dir/$3" || case "$(ls -A -- "$dir" 2>/dev/null)" in
""|"$4"put-*) ;;
*) exit 0 ;;
esac
[ ! "$(list_mounts)" ] || exit 1
for wait in 0.2 1 2; do
  rm -rf -- "$dir" 2>/dev/null && exit 0
  sleep $wait
done
exec rm -rf -- "$dir"
