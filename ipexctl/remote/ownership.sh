# Who may own and write what ipexctl executes on a host, for every script that executes it; `find_store_fault` of
# session/places.py says the same of environments. POSIX sh; stands before other scripts.
newline='
'
shared=''
# find_fault TOP [PATH..]: $fault is why nothing there is executed, else empty. Each of these that is there must be no link,
# belong to this account (with $shared, all to the owner of TOP), and be written by nobody else. A directory above TOP may
# be written by a group, which is trusted with what it shares, or be one like /tmp, if it and what leads on from it belong
# to root or this account: anybody can put something there.
find_fault() {
  fault='' top=$1 owner=''
  for path do
    [ -e "$path" ] || [ -L "$path" ] || continue
    case $path in *"$newline"*) fault="$top has a name of several lines"; return ;; esac # which would be read as ours
    set -- $(ls -ldn "$path" 2>/dev/null)
    [ "$1" ] || [ -e "$path" ] || [ -L "$path" ] || continue # a run has ended meanwhile
    : "${owner:=$3}"
    case $1 in
    l*) fault='is a symbolic link' ;;
    ?????w*|????????w*) fault='can be written by others' ;;
    *) [ "$3" = "$owner" ] && { [ "$shared" ] || [ -O "$path" ]; } || fault='belongs to another user' ;;
    esac
    [ -e "$path" ] || [ -L "$path" ] || fault='' # it ended between these looks
    [ -z "$fault" ] || { fault="$path $fault"; return; }
  done
  set --
  for above in "$(cd -P "${top%/*}/" 2>/dev/null && pwd -P)" "${top%/*}"; do # a link on the way may lead elsewhere later
    while [ "${above%/}" ]; do
      set -- "$above" "$@"
      above=${above%/*}
    done
    set -- / "$@"
  done
  case $newline$(ls -ldn "$@" 2>/dev/null) in *"$newline"d???????w*) ;; *) return ;; esac
  loose='' account=$(id -u)
  for above in "$@" "$top"; do
    [ -e "$above" ] || continue
    set -- $(ls -ldn "$above" 2>/dev/null)
    other=''
    [ "$3" = 0 ] || [ "$3" = "$account" ] || other="$above belongs to another user"
    case $1 in
    d???????w[!tT]*) fault="$above can be written by everybody" ;;
    d???????w*) fault=${other:+"$other, and can be written by everybody"} loose=$above ;;
    *) fault=${other:+${loose:+"$other, and $loose can be written by everybody"}} loose='' ;;
    esac
    [ -z "$fault" ] || return
  done
}
# The same of an environment that ipexctl has made, whoever's it is, and of the link to it: succeeds where there is no fault.
check_environment() {
  fault='' shared=yes
  real=$(cd -P "$1" 2>/dev/null && pwd -P)
  if [ -n "$real" ] && [ "${real%/*}" -ef "$1.d" ]; then
    find_fault "$1.d" "$real" "$real/bin" "$real/lib"
    [ -n "$fault" ] || find_fault "$1/none" # the way to what is in it
  fi
  shared=''
  [ -z "$fault" ]
}
# The same of what a run is started with, after which its environment may have gone, and another's have come: by its own
# path in the store or, of one that ipexctl did not make, whose content is the user's choice, of the way to it.
check_interpreter() {
  env=${1%/bin/python}
  check_environment "$env" || return
  fault=none shared=yes
  case ${env%/*} in
  *.d) find_fault "${env%/*}" "$env" "$env/bin" "$env/lib" ;;
  /*) find_fault "$1/none" ;;
  esac
  shared=''
  [ -z "$fault" ]
}
refuse_fault() {
  [ -z "$fault" ] || { printf '%s\n' "$fault" >&2; exit 4; }
}
