# Begins the scripts that work in a directory of a host, their first word: $dir is its absolute name.
umask 077
LC_ALL=C TZ=UTC0 # without TZ find asks for /etc/localtime three times for each file
export LC_ALL TZ
CDPATH=
unset TAR_OPTIONS # of the account: tar would leave files out without a word
dir=$1
shift
fail() { printf '%s\n' "$1" >&2; exit 3; }

# A link is never followed where ipexctl creates something.
case $dir in '~/'*) dir=$HOME/${dir#'~/'} ;; /*) ;; *) dir=$HOME/$dir ;; esac
while [ "${dir%/}" != "$dir" ]; do dir=${dir%/}; done
if [ -L "$HOME/ipexctl" ]; then case $dir in "$HOME/ipexctl"/*) fail "$HOME/ipexctl is a symbolic link" ;; esac; fi
[ -L "$dir" ] && fail "$dir is a symbolic link"
[ "$dir" -ef "$HOME" ] && fail "the destination is the home directory"
[ "${dir:-/}" -ef / ] && fail "the destination is the root directory"
# Refuses the current directory, $dir, where others may have put something, which a rank would execute: also if nothing is
# to be sent there. To take away their right to write is not enough.
refuse_strangers() {
  [ -O . ] || fail "$dir belongs to another user"
  above=$dir
  case $dir in "$HOME/ipexctl"/*) above=${dir%/*} ;; esac # who can write ~/ipexctl can replace a project
  for at in "$above" "$dir"; do
    case $(ls -ldn "$at/") in
    ?????w*|????????w*) fail "$at can be written by others: chmod go-w it, and move away what they may have put there" ;;
    esac
  done
}
# Prints where something is mounted below $dir, also of the same file system: that is somebody's data, and rm would take it
# first. Blanks are numbers in what it prints, as the kernel writes them.
number_blanks() { sed 's/\\/\\134/g; s/ /\\040/g; s/	/\\011/g'; }
list_mounts() {
  real=$(cd -P -- "$dir" && pwd | number_blanks) || fail "cannot read $dir"
  while read -r _ _ _ _ at _; do
    case $at in "$real"/*) printf '%s\n' "${at#"$real"/}" ;; esac
  done </proc/self/mountinfo
}
