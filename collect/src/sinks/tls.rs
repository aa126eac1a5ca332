//! TLS: trusted authorities and client certificates.
//!
//! The system's authorities are used, which its administrator can change and its updates renew. Neither would be possible with a list that is built into
//! the program.

use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use rustls::crypto::ring;
use rustls_native_certs::load_native_certs;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};

use crate::config::Tls;
use crate::files::read_up_to;

/// Maximum length of a file with certificates or a key, in bytes.
const MAX_FILE: u64 = 4 << 20;

/// The TLS configuration for ureq. Authorities are loaded only if TLS `is_used`.
pub fn client(tls: &Tls, is_used: bool) -> anyhow::Result<TlsConfig> {
    let roots = if is_used { roots(tls)? } else { Vec::new() };
    let shown = match (&tls.certificate_file, &tls.key_file) {
        (Some(chain), Some(key)) => {
            let key_file = key.display();
            let key = PrivateKey::from_pem(&read(key)?);
            let key = key.with_context(|| format!("{key_file} has no private key in PEM"))?;
            Some(ClientCert::new_with_certs(&certificates(chain)?, key))
        }
        _ => None,
    };
    Ok(TlsConfig::builder()
        .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
        .root_certs(RootCerts::new_with_certs(&roots))
        .client_cert(shown)
        .build())
}

fn roots(tls: &Tls) -> anyhow::Result<Vec<Certificate<'static>>> {
    if let Some(path) = &tls.ca_file {
        return certificates(path);
    }
    let found = load_native_certs();
    for error in &found.errors {
        log::warn!("Certificates of authorities: {error}");
    }
    if found.certs.is_empty() {
        bail!(
            "This system has no certificates of authorities: install ca-certificates, or set ca_file"
        );
    }
    let roots = found.certs.iter();
    Ok(roots
        .map(|der| Certificate::from_der(der).to_owned())
        .collect())
}

/// All certificates in a file.
fn certificates(path: &Path) -> anyhow::Result<Vec<Certificate<'static>>> {
    let bytes = read(path)?;
    let items = parse_pem(&bytes).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(Ok(certificate)),
        Ok(_) => None,
        Err(error) => Some(Err(error)),
    });
    let found: Result<Vec<_>, _> = items.collect();
    let found = found.with_context(|| format!("{} isn't PEM", path.display()))?;
    if found.is_empty() {
        bail!("{} has no certificate in PEM", path.display());
    }
    Ok(found)
}

/// The bytes of a file.
pub fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    read_up_to(path, MAX_FILE).with_context(|| format!("Cannot read {}", path.display()))
}

/// Advice for a connection's error that is about certificates, as the end of a message. Empty for other errors.
pub fn advice(error: &(dyn Error + 'static)) -> &'static str {
    let mut next = Some(error);
    while let Some(error) = next {
        match error.downcast_ref::<rustls::Error>() {
            Some(rustls::Error::InvalidCertificate(_)) => {
                return ": its certificate isn't trusted (ca_file names the trusted authorities)";
            }
            Some(rustls::Error::AlertReceived(_)) => {
                return ": it refuses the TLS handshake (certificate_file names the client's certificate)";
            }
            _ => {}
        }
        // These errors contain their cause, but don't return it as their source.
        let io = match error.downcast_ref::<ureq::Error>() {
            Some(ureq::Error::Rustls(error)) => Some(error as &(dyn Error + 'static)),
            Some(ureq::Error::Io(error)) => Some(error as &(dyn Error + 'static)),
            _ => error
                .downcast_ref::<io::Error>()
                .and_then(io::Error::get_ref)
                .map(|inner| inner as &(dyn Error + 'static)),
        };
        next = io.or_else(|| error.source());
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_another_type_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        let tls = Tls {
            ca_file: Some(path.clone()),
            ..Tls::default()
        };
        let said = |tls: &Tls| format!("{:#}", client(tls, true).unwrap_err());
        assert!(said(&tls).contains("Cannot read"), "{}", said(&tls));
        for text in ["", "no PEM", "-----BEGIN CERTIFICATE-----\n!\n"] {
            std::fs::write(&path, text).unwrap();
            assert!(said(&tls).contains("PEM"), "{}", said(&tls));
        }
        // Without TLS the files aren't needed.
        client(&tls, false).unwrap();
    }
}
