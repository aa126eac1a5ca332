# What makes packages a machine: run by mmdebstrap, with the new root folder as argument.
set -e
root=$1
echo debian >"$root/etc/hostname"
echo '/dev/vda / ext4 errors=remount-ro 0 1' >"$root/etc/fstab"
cat >"$root/etc/systemd/network/50-dhcp.network" <<'END'
[Match]
Name=e*

[Network]
DHCP=ipv4
END
# A network device of this address is on a network without DHCP.
cat >"$root/etc/systemd/network/40-static.network" <<'END'
[Match]
MACAddress=02:00:00:00:00:07

[Network]
Address=10.9.0.2/24
Gateway=10.9.0.1
END
chroot "$root" systemctl enable systemd-networkd
# root logs in without a password.
chroot "$root" passwd -d root
