# Begins the scripts that work in a directory of a host, their first word: $dir is its absolute name.
umask 077
LC_ALL=C TZ=UTC0 # without TZ find asks for /etc/localtime three times for each file
export LC_ALL TZ
CDPATH=
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
