# Makes the directory of a run, all of it or nothing. POSIX sh with tar; ownership.sh stands before it; run as:
#   sh -c TEXT NAME DIRECTORY AGENTS ID AGENT PART
# stdin: a tar stream with the files of the run, `tree/…`, perhaps `agent`, and `whole`. An agent stays in AGENTS by its ID,
# its SHA-256, for further runs, which need not bring it: each gets a copy of its own, AGENT. Where there is none, or one
# with another content, prints the ID, and nothing is made. Ends 0, or 3 with one line on stderr: what is wrong and where.
umask 077
LC_ALL=C
export LC_ALL
unset TAR_OPTIONS
dir=$1 agents=$HOME/$2 id=$3 agent=$4 part=$5put-$$
shift 5
up=${dir%/*}
fail() { printf '%s\n' "$1" >&2; exit 3; }
# What the directory lies in, and what is executed, is for nobody else to write.
if [ ! -d "$up" ] || [ ! -d "$agents" ]; then
  said=$(mkdir -p "$up" "$agents" 2>&1) || fail "cannot create a directory: ${said##*mkdir: }"
fi
for each in "$up" "$agents"; do
  find_fault "$each"
  refuse_fault
done
# Room for the agent twice, the reserve for last words, and what the store of the output leaves to others.
free=$(df -Pk "$up" 2>/dev/null | awk 'END { print $4 }')
case $free in ''|*[!0-9]*) free=4096 ;; esac
[ "$free" -ge 4096 ] || fail "no space left: a run needs 4.0 MiB in $up, $free KiB free"
said=$(mkdir -m 700 "$dir" 2>&1) || fail "cannot create $dir: ${said##*: }"
trap 'cd / && rm -rf -- "$dir"' 0
trap 'exit 3' 1 2 13 15
mkdir -m 700 "$dir/$part" && cd "$dir/$part" || fail "cannot create $dir/$part"
said=$(tar -xpof - 2>&1) || fail "cannot unpack in $dir: $(printf '%s\n' "$said" | head -n 1)"
[ -f whole ] || fail "the transfer was cut"
kept=$agents/$id new=$agents/$id-${dir##*/} # hosts with one home directory may have the same process ids, too
copy_kept() { # what is hashed is the copy: nobody else has it
  [ -f "$kept" ] && [ ! -L "$kept" ] && cp "$kept" "tree/$agent" 2>/dev/null && sum=$(sha256sum "tree/$agent") &&
    [ "${sum%% *}" = "$id" ]
}
if [ -f agent ]; then
  cp agent "$new" || { rm -f "$new"; fail "cannot write $kept"; }
  sync -d "$new" 2>/dev/null # what stays shall be on the disk before it has its name
  mv -f "$new" "$kept" || fail "cannot write $kept"
  # Those of other versions, older by 90 days than this one: find's own ages are by the clock of this host, which is not
  # that of a file server.
  limit=$dir/$part/limit
  if changed=$(stat -c %Y "$kept" 2>/dev/null) && touch -d "@$((changed - 7776000))" "$limit" 2>/dev/null; then
    find "$agents" -type f ! -newer "$limit" -exec rm -f {} +
  fi
  mv agent "tree/$agent"
elif ! copy_kept; then
  printf '%s\n' "$id"
  exit 0
fi
said=$(mv tree/* "$dir" 2>&1) || fail "cannot write $dir: ${said##*: }"
[ -x "$dir/agent" ] || fail "no program of a run can be executed in $up: it is mounted noexec, and must not be"
cd / && rm -rf -- "$dir/$part"
trap - 0
