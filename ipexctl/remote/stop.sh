# Stops the process group $p: SIGTERM, then SIGKILL. Prints "alive" if it still runs. POSIX sh; $p stands before it.
alive() {
  kill -0 -$p 2>/dev/null || kill -0 $p 2>/dev/null || return 1
  for f in /proc/[0-9]*/stat; do
    read -r s <"$f" || continue
    set -- "${s%% *}" ${s##*) }
    case $2 in Z|X) continue ;; esac
    if [ "$1" = $p ] || [ "$4" = $p ]; then return 0; fi
  done 2>/dev/null
  return 1
}
for sign in TERM KILL; do
  kill -$sign -$p 2>/dev/null || kill -$sign $p 2>/dev/null # "--" is not known to busybox, nor after -0 to dash
  for i in 1 2 3 4 5; do alive || exit 0; sleep 0.$i 2>/dev/null || sleep 1; done
done
echo alive
