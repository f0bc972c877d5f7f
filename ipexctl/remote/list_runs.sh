# Lists the runs whose head this host is. POSIX sh; run as: sh -c TEXT NAME RUNS ROLE AGENT LIST NONE, where NONE is what
# is printed without a run. Any run's agent can tell of all, but that of an old one may have lost its interpreter.
all=$HOME/$1 tried=
for d in "$all"/*; do
  [ -x "$d/$2" ] || continue
  "$d/$2" "$4" "$all" || python3 -E -s -S "$d/$3" "$4" "$all" && exit 0
  [ ! -e "$d/$2" ] || tried=1 # not a run that has ended and gone meanwhile
done
[ "$tried" ] || printf '%s\n' "$5"
