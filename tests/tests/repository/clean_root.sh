# Installs the packages in /srv of a new Debian system, uses them, and purges them: run by mmdebstrap, with the system's root folder as
# argument.
set -e
cat >"$1/srv/checks" <<'END'
set -e
# files: all files, links and folders, except for the records of the packages' managers, and caches.
files() {
    find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /srv -o -path /var/cache -o -path /var/log \
        -o -path /var/lib/apt -o -path /var/lib/dpkg \) -prune -o -print | sort
}
apt() { apt-get --quiet --quiet --yes --no-install-recommends "$@"; }
units='kvmprof-collect.service kvmprof-launcher.service pcsd.service'
set -x
files >/srv/before
apt install /srv/*.deb
for program in kvmprof kvmprof-collect pcsd getpc pcstat prfld prfstat prfdc prfsnap prfpr; do
    "$program" --version | grep "^$program [0-9]"
    ! ls "/usr/share/bash-completion/completions/$program" ||
        bash -c '. /usr/share/bash-completion/completions/"$1" && complete -p "$1"' sh "$program"
    man "$program" | grep NAME
done
man 3kvmprof profil | grep -i profil
ldconfig --print-cache | grep libkvmprof
systemd-analyze verify --recursive-errors=no $units
test "$(systemctl is-enabled pcsd.service)" = enabled
test "$(systemctl is-enabled kvmprof-collect.service || true)" = disabled
apt purge $(cd /srv && for deb in *.deb; do echo "${deb%%_*}"; done)
files >/srv/after
diff /srv/before /srv/after
END
chroot "$1" sh /srv/checks
