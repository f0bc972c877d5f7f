# What the MPI launcher calls in place of ssh: has the keeper start a proxy on a host, and waits for the word to end. Such
# a process lives for each host, so it is no Python. POSIX sh; run by Hydra as `shim -q -x HOST WORD ..`, by Open MPI as
# `shim HOST WORD ..`; $pipes stands before it: the named pipes that the keeper has made (`launcher_pipes`).
case $1 in -*)
  while [ $# -gt 1 ] && [ "$1" != -x ]; do shift; done
  shift
  ;;
esac
host=$1
shift
if [ ! -p "$pipes/$host" ]; then
  echo "ipexctl: the run has no host $host" >&2
  exit 1
fi
# To open one end of a pipe waits for the other end, and a keeper that has ended opens none: both ends are opened at once.
exec 4<>"$pipes/$host" 3<"$pipes/$host" 4>&-
printf '%s\0' "$@" >"$pipes/$host.$$" && printf '%s\n' "$host.$$" 1<>"$pipes/requests" || exit 1
read -r status <&3
exit "${status:-1}" # without a status the keeper is gone
