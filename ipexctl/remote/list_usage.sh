# What ipexctl takes on this host: "KIND KIB" and a path, with a NUL behind each, for every place that exists; then "project" and
# the path of each directory that may be a project's: those of ~/ipexctl, and WORKDIR ("": none). POSIX sh with du; run as:
#   sh -c TEXT NAME STATE VENV WORKDIR
# A file that several places share by hard links counts for the first of them: an uninstall leaves what uv's cache has.
case $2 in '~/'*) env=$HOME/${2#'~/'}.d ;; *) env=$2.d ;; esac
uv=${XDG_CACHE_HOME:-$HOME/.cache}/uv
du -sk "$env/wheels" "$env/cache" "$uv" "$env" "$HOME/$1" 2>/dev/null | while read -r size path; do
  case $path in
  "$env") kind=environment ;;
  "$HOME/$1") kind=runs ;;
  *) kind=wheels ;;
  esac
  printf '%s %s\0%s\0' "$kind" "$size" "$path"
done
case $3 in '~/'*) work=$HOME/${3#'~/'} ;; '' | /*) work=$3 ;; *) work=$HOME/$3 ;; esac
for dir in "$HOME"/ipexctl/* "$HOME"/ipexctl/hub/* "$work"; do
  [ ! -d "$dir" ] || [ -L "$dir" ] || printf 'project 0\0%s\0' "$dir"
done
