# What a host does to receive files. POSIX sh with find, tar, mv; target_directory.sh stands before it; run as:
#   sh -c TEXT NAME DIRECTORY VERB ...
#   place PART STORE [OLD..]
#                      unpacks a tar stream, from stdin or DIRECTORY/STORE/tree.tar ("-": stdin), into DIRECTORY/PART, then
#                      moves its files into DIRECTORY, each by rename
#   have  NAME SHA     sizes of NAME ("-" if its hash differs or it is absent) and of its unfinished part
#   append NAME SHA N  appends stdin to the part, from byte N on; moves it to NAME if its hash is SHA
# Ends 0, or 3 with one line on stderr: what is wrong and where.
verb=$1
shift
enter() {
  created=
  if [ ! -e "$dir" ]; then
    if { [ -d "${dir%/*}/" ] || mkdir -p "${dir%/*}/" 2>/dev/null; } && mkdir -m 700 "$dir" 2>/dev/null; then
      created=yes
    else # or another host with the same home directory was first
      said=$(mkdir -p "$dir" 2>&1) || fail "cannot create $dir: ${said##*: }"
    fi
  fi
  [ -d "$dir" ] || fail "$dir is not a directory"
  cd "$dir" 2>/dev/null || fail "cannot enter $dir: permission denied"
  if [ "$created" ]; then return; fi
  refuse_strangers
  [ -w . ] || fail "cannot write to $dir: read-only"
}

# Refuses $dir before anything in it has changed. $1: "." or a directory of the tree here, which $dir has as well.
check_directory() {
  [ -w "$dir/$1" ] || fail "cannot write to $dir/${1#./}: permission denied or read-only"
  for sub in "$1"/*/ "$1"/.[!.]*/ "$1"/..?*/; do
    sub=${sub%/}
    if [ -L "$sub" ] || [ ! -d "$sub" ]; then continue; fi # a link of the tree, or a pattern that nothing matches
    if [ -L "$dir/$sub" ]; then
      fail "$dir/${sub#./} is a symbolic link"
    elif [ -d "$dir/$sub" ]; then
      check_directory "$sub"
    elif [ -e "$dir/$sub" ] && [ ! -d "$dir/$sub" ]; then # another host with the same home directory may create it now
      fail "cannot create $dir/${sub#./}: a file has this name"
    fi
  done
}
# Moves what is in the directory $1 into the directory $2, each by rename; both are absolute. A directory that is new there
# goes as a whole, with one rename for all its files. Those that both have are entered, and a link that somebody who may
# write there has meanwhile put in the place of one is not followed; the second try is for one that another host with the
# same home directory has created meanwhile.
move_contents() (
  from=$1 to=$2
  cd -P -- "$to" || exit 1
  [ "$PWD" = "$to" ] || { printf '%s is a symbolic link\n' "$to"; exit 1; }
  for try in 1 2; do
    failed=
    set --
    for entry in "$from"/* "$from"/.[!.]* "$from"/..?*; do
      if [ ! -L "$entry" ] && [ ! -f "$entry" ]; then
        [ -d "$entry" ] || continue # a pattern that nothing matches
        name=./${entry##*/}
        if [ -d "$name" ] && [ ! -L "$name" ]; then continue; fi
      fi
      set -- "$@" "$entry"
      if [ $# -ge 200 ]; then mv -f -- "$@" ./ || failed=yes; set --; fi
    done
    [ $# -eq 0 ] || mv -f -- "$@" ./ || failed=yes
    [ "$failed" ] || break
  done
  [ ! "$failed" ] || exit 1
  for entry in "$from"/*/ "$from"/.[!.]*/ "$from"/..?*/; do
    entry=${entry%/}
    if [ ! -L "$entry" ] && [ -d "$entry" ]; then move_contents "$entry" "$to/${entry##*/}" || exit 1; fi
  done
)
# Removes these paths below $0, which begin with ./, in each directory at once; no link on the way to one is followed.
remove_paths='
remove() {
  [ $# -gt 0 ] && [ -d "$0${at#.}" ] || return 0
  cd -P -- "$0${at#.}" || exit 1
  [ "$PWD" = "$0${at#.}" ] || { echo "$0${at#.} is a symbolic link"; exit 1; }
  rm -rf -- "$@" || exit 1
}
at=
for path do
  [ "$at" ] || set --
  if [ $# -ge 200 ] || [ "$at" != "${path%/*}" ]; then remove "$@"; set --; fi
  at=${path%/*}
  set -- "$@" "./${path##*/}"
done
remove "$@"'

case $verb in
place)
  enter
  cd -P . && top=$PWD
  part=$1 store=$2
  shift 2
  [ "$store" = - ] || exec <"$store/tree.tar" || fail "cannot read $dir/$store/tree.tar"
  for old do # what earlier pushes, interrupted, have left; its writer may still wait for a link that is gone
    case $old in .ipexctl-part-*/*) continue ;; .ipexctl-part-*) ;; *) continue ;; esac
    pid=${old##*-}
    [ "$pid" != $$ ] || continue # another host's, with the same home directory; its names are on our command line
    # Of another user's process the words may have no end; busybox's grep reads up to a NUL.
    if [ -O "/proc/$pid" ] && head -c 65536 "/proc/$pid/cmdline" 2>/dev/null | tr '\0' '\n' | grep -qF -- "${old%-*}"; then
      read -r stat <"/proc/$pid/stat"
      stat=${stat##*) } # state, parent, process group
      group=${stat#* * }
      kill -TERM "-${group%% *}" 2>/dev/null || kill "$pid" 2>/dev/null # busybox knows no "--" here
    fi
    [ -L "$old" ] || rm -rf -- "./$old" 2>/dev/null # its writer removes it as well
  done
  part=$part-$$
  mkdir -m 700 "$part" || fail "cannot create $dir/$part"
  up=. # from here, not by $dir: another user, who may write above, can put a link there meanwhile
  trap 'cd -P -- "$up" && rm -rf -- "./$part"' 0
  trap 'exit 3' 1 2 13 15
  said=$(cd "$part" && tar -xpof - 2>&1) || {
    free=$(df -Pk . | awk 'END { print $4 }')
    [ "${free:-65}" -gt 64 ] || said='No space left on device'
    fail "cannot unpack in $dir: $(printf '%s\n' "$said" | head -n 1)"
  }
  [ -f "$part/whole" ] || fail "the transfer was cut"
  cd "$part/tree" && up=../.. || fail "the transfer was cut"
  if [ -f ../stored ]; then # names in $store and paths here, where an empty file has the mode and the time
    said=$(xargs -0 -n 2 sh -c '
      mode=600; if [ -x "$2" ]; then mode=700; fi
      touch -r "$2" "$0/$1" && chmod "$mode" "$0/$1" && { ln -f "$0/$1" "$2" 2>/dev/null || cp -p "$0/$1" "$2"; }
      ' "$up/$store" <../stored 2>&1) || fail "cannot take what came into $dir/$store: ${said##*: }"
  fi
  check_directory .
  if [ -f ../to_delete ]; then
    list_mounts >../mounts
    while read -r at; do
      name=./$at
      while [ "$name" != . ]; do
        ! tr '\0' '\n' <../to_delete | number_blanks | grep -qxF -e "$name" ||
          fail "something is mounted at $dir/$at, which --delete would empty"
        name=${name%/*}
      done
    done <../mounts
    output=$(xargs -0 sh -c "$remove_paths" "$top" <../to_delete 2>&1) || fail "cannot remove in $dir: ${output##*: }"
  fi
  # What is renamed shall be on the disk first; but not where much of others' waits to be written as well.
  dirty=0
  while read -r key value _ && [ "$key" != Writeback: ]; do [ "$key" = Dirty: ] && dirty=$value; done 2>/dev/null </proc/meminfo
  [ "$dirty" -gt 262144 ] || sync -f . 2>/dev/null
  said=$(move_contents "$top/$part/tree" "$top" 2>&1) || fail "$(find . ! -type d | wc -l) files did not get into $dir: ${said##*: }"
  if [ -f ../mark ]; then mv -f ../mark "$up/.ipexctl-sync.json" || fail "cannot write $dir/.ipexctl-sync.json"; fi
  printf '%s\n' "$dir"
  ;;
have)
  enter
  name=$1 part=.ipexctl-part-$2
  whole=- partial=0
  if [ -f "$name" ] && [ ! -L "$name" ]; then
    sum=$(sha256sum "./$name") && [ "${sum%% *}" = "$2" ] && whole=$(wc -c <"$name")
  fi
  if [ -f "$part" ] && [ ! -L "$part" ] && [ -O "$part" ]; then partial=$(wc -c <"$part"); fi
  printf '%s %s %s\n' "$whole" "$partial" "$(df -Pk . | awk 'END { print $4 }')"
  ;;
append)
  enter
  name=$1 part=.ipexctl-part-$2
  [ -L "$part" ] && fail "$dir/$part is a symbolic link"
  [ -L "$name" ] && fail "$dir/$name is a symbolic link"
  if [ "$3" = 0 ]; then rm -f -- "$part"; fi
  [ "$3" = 0 ] || [ "$(wc -c <"$part")" -eq "$3" ] || fail "$dir/$part changed meanwhile"
  said=$( (cat >>"$part") 2>&1) || fail "cannot write $dir/$name: ${said##*: }"
  sum=$(sha256sum "./$part")
  [ "${sum%% *}" = "$2" ] || { printf 'partial\n'; exit 0; }
  chmod "$4" "$part" && mv -f -- "$part" "./$name" || fail "cannot write $dir/$name"
  printf '%s\n' "$dir/$name"
  ;;
esac
