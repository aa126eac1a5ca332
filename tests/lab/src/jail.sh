# jailed NAME PROGRAM: makes /run/jailed-NAME, which runs the program where it can make a root folder of its own. pivot_root(2) is
# impossible in an initramfs, so the program gets a file system that is the root of a mount namespace, with the /run of the initramfs.
jailed() {
    if [ ! -e /jail ]; then
        mkdir /jail
        mount -t tmpfs none /jail
        mkdir -p /jail/run /jail/proc /jail/dev /jail/tmp /jail/etc /jail/bin
        chmod 1777 /jail/tmp
        echo 'nobody:x:65534:65534:nobody:/:/bin/sh' >/jail/etc/passwd
        cp -a /lib /lib64 /jail/ 2>/dev/null
    fi
    cp "$2" "/jail/bin/$1"
    cat >"/run/in-jail-$1" <<END
mount --bind /run /jail/run
mount --bind /dev /jail/dev
mount --bind /proc /jail/proc
cd /jail
mount --move . /
exec chroot . /bin/$1 "\$@"
END
    printf '#!/bin/sh\nexec unshare -m sh /run/in-jail-%s "$@"\n' "$1" >"/run/jailed-$1"
    chmod +x "/run/jailed-$1"
}
