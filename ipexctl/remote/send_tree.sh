# What a host does to hand files over. POSIX sh with find, tar, xargs; run as: sh -c TEXT NAME VERB DIRECTORY [PATTERN ...]
#   list DIR PATTERN..  absolute DIR, then a record per thing found: "number-of-pattern kind mode size mtime", its name;
#                       patterns are absolute, below ~/, or begin with ./ and then mean things in DIR
#   pack DIR            the files whose names (each ending with a NUL) come on stdin, as tar streams one after the other
# What a pattern itself names is looked at through links; links below it are told (kind l) and not followed.
umask 077
LC_ALL=C
export LC_ALL
CDPATH=
unset TAR_OPTIONS # of the account: tar would leave files out without a word
verb=$1 dir=$2
shift 2
fail() { printf '%s\n' "$1" >&2; exit 3; }
case $dir in '~/'*) dir=$HOME/${dir#'~/'} ;; /*) ;; *) dir=$HOME/$dir ;; esac
there=yes
cd "$dir" 2>/dev/null || there=

case $verb in
list)
  printf '%s\0' "$dir"
  printed=
  if find / -prune -printf '' 2>/dev/null; then printed=yes; fi
  number=0
  for pattern do
    case $pattern in '~/'*) pattern=$HOME/${pattern#'~/'} ;; /*) ;; *) [ "$there" ] || pattern= ;; esac
    IFS= # no word is split, but globs are filled in
    for found in $pattern; do
      if [ ! -e "$found" ] && [ ! -L "$found" ]; then continue; fi
      if [ "$printed" ]; then
        find -H "$found" -name '.ipexctl-part-*' -prune -o -printf "$number %y %m %s %Ts\0%p\0" 2>/dev/null
      else # busybox
        find -H "$found" -name '.ipexctl-part-*' -prune -o -exec sh -c '
          number=$1 found=$2
          shift 2
          for f do
            t=o
            if [ -L "$f" ] && [ "$f" != "$found" ]; then t=l; elif [ -d "$f" ]; then t=d; elif [ -f "$f" ]; then t=f; fi
            printf "%s %s %s\0%s\0" "$number" $t "$(stat -L -c "%a %s %Y" "$f" 2>/dev/null || echo 0 0 0)" "$f"
          done' sh "$number" "$found" {} + 2>/dev/null
      fi
    done
    number=$((number + 1))
  done
  ;;
pack)
  alone=  # of GNU tar, which would read a backslash in a name as an escape
  if tar --help 2>/dev/null | grep -q -e --hard-dereference; then alone="--hard-dereference --no-unquote"; fi
  # A file that grows or goes away meanwhile ends tar with 1 or 2; what came is judged by what arrives.
  xargs -0 tar -chf - $alone --
  exit 0
  ;;
esac
