# A root that can be shared, unlike an initramfs, with what the tutorial presumes.
root=/root-of-tutorial
mkdir $root
mount -t tmpfs none $root
mkdir -p $root/usr/libexec $root/etc $root/tmp $root/linux/arch/x86/boot $root/var
for folder in bin sbin etc lib lib64 usr; do
    [ ! -e /$folder ] || cp -a /$folder $root/
done
mkdir -p $root/lib/modules
cp -r /lab/modules "$root/lib/modules/$(cat /lab/release)"
echo "nobody:x:65534:65534:nobody:/:/bin/sh" >$root/etc/passwd
cp /lab/kvmprof $root/bin/
cp /lab/virtiofsd $root/usr/libexec/
cp /lab/bzImage $root/linux/arch/x86/boot/
for folder in proc sys dev run out; do
    mkdir -p $root/$folder
    mount --rbind /$folder $root/$folder
done
cat >$root/run-commands <<'END'
cd /linux
while read -r line; do
    echo "\$ $line" >>/out/said
    sh -ec "$line" </dev/null >/out/last 2>&1 || { cat /out/said /out/last >&2; echo "failed: $line" >&2; exit 80; }
    cat /out/last >>/out/said
    case $line in *--tree*) cp /out/last /out/tree ;; esac
done <"$1"
cp diff.html /out/
END
cp /lab/commands $root/
unshare -m sh -c "cd $root && mount --move . / && exec chroot . /bin/sh /run-commands /commands" || exit
