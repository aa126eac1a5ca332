"""Writes an authority and the certificates of a server and of a client into a folder: certificates.py FOLDER.

The files are ca.pem; server.pem and server.key, for 127.0.0.1; client.pem and client.key; other.pem, an authority that has signed nothing.
"""

import datetime
import ipaddress
import pathlib
import sys

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

folder = pathlib.Path(sys.argv[1])
now = datetime.datetime.now(datetime.timezone.utc)


def certificate(name, key, issuer, issuer_key, is_authority):
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder(
        subject_name=subject,
        issuer_name=issuer or subject,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - datetime.timedelta(days=1),
        not_valid_after=now + datetime.timedelta(days=30),
    )
    builder = builder.add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    if not is_authority:
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def write(name, made, key):
    (folder / f"{name}.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    (folder / f"{name}.key").write_bytes(pem)


def new_key():
    return ec.generate_private_key(ec.SECP256R1())


for name in ["ca", "other"]:
    key = new_key()
    authority = certificate(name, key, None, key, True)
    write(name, authority, key)
    if name == "ca":
        for end in ["server", "client"]:
            end_key = new_key()
            write(end, certificate(end, end_key, authority.subject, key, False), end_key)
