# service.sh PROGRAMS PACKAGING SOCKETS STATE ROOT: in namespaces of its own, makes a root folder with the host's /usr and the package's files, and becomes
# its systemd. SOCKETS is /run/kvmprof there, STATE is /var/lib. STATE/ready says that all of it could be made.
set -eu
mount --make-rprivate /
mount -t tmpfs tmpfs "$5"
cd "$5"
mkdir -p usr upper work etc/kvmprof etc/systemd/system var/lib var/log run tmp proc sys dev root home old
mount -t overlay overlay -o "lowerdir=/usr,upperdir=$5/upper,workdir=$5/work" usr
for link in bin sbin lib lib64; do ln -s "usr/$link" "$link"; done
cp "$1/kvmprof" "$1/kvmprof-collect" usr/bin/
# Another VMM by its name.
cp "$1/kvmprof" usr/bin/vmm
cp "$2/kvmprof-collect.service" "$2/kvmprof-launcher.service" etc/systemd/system/
ln -s /run/kvmprof/collect.toml etc/kvmprof/collect.toml
echo 'root:x:0:0:root:/root:/bin/sh' >etc/passwd
echo 'root:x:0:' >etc/group
echo 0123456789abcdef0123456789abcdef >etc/machine-id
printf '[Unit]\nWants=kvmprof-collect.service\n' >etc/systemd/system/only.target
mount -t proc proc proc
mount -t sysfs sysfs sys
mount --rbind /dev dev
mount -t tmpfs tmpfs run
mkdir run/kvmprof
mount --bind "$3" run/kvmprof
mount --bind "$4" var/lib
pivot_root . old
umount -l old
touch /var/lib/ready
exec env -i container=kvmprof PATH=/usr/bin:/usr/sbin /lib/systemd/systemd --system --unit=only.target --log-target=null
