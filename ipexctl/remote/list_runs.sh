# Lists the runs whose head this host is. POSIX sh; ownership.sh stands before it; run as:
#   sh -c TEXT NAME RUNS ROLE AGENT LIST NONE AGENTS
# where NONE is what is printed without a run. Any run's agent can tell of all, but that of an old one may have lost its interpreter.
# Where any directory is, also one that has no agent of its own (half made), an agent is asked: the first that works, of any
# run, or one that is kept for further runs.
all=$HOME/$1 tried='' asked='' refused=''
for d in "$all"/*; do
  [ ! -d "$d" ] || asked=1
done
[ "$asked" ] || { printf '%s\n' "$5"; exit 0; }
find_fault "$all"
refuse_fault
for d in "$all"/*; do
  [ -x "$d/$2" ] || continue
  find_fault "$all" "$d" "$d/$2" "$d/$3"
  [ -z "$fault" ] || { refused=$fault; continue; } # another run's agent tells of all that are ours
  "$d/$2" "$4" "$all" || python3 -E -s -S "$d/$3" "$4" "$all" && exit 0
  [ ! -e "$d/$2" ] || tried=1 # not a run that has ended and gone meanwhile
done
fault=$refused
refuse_fault
for kept in "$HOME/$6"/*; do
  find_fault "$HOME/$6" "$kept"
  [ -z "$fault" ] && [ -f "$kept" ] && sum=$(sha256sum "$kept") && [ "${sum%% *}" = "${kept##*/}" ] || continue
  python3 -E -s -S "$kept" "$4" "$all" && exit 0
done
[ "$tried" ] || printf '%s\n' "$5"
