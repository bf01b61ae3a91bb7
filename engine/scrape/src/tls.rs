//! TLS of the client.
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use crate::client::read_file;
use crate::{Pem, ScrapeError, TlsConfig};

/// The TLS configuration of a client. Without `has_tls` it is only a placeholder: plain requests need no roots.
pub(crate) fn client_config(tls: &TlsConfig, has_tls: bool) -> Result<ClientConfig, ScrapeError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable("tls_config", &error))?;
    let builder = if tls.insecure_skip_verify && has_tls {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(AcceptAny(provider)))
    } else {
        builder.with_root_certificates(if has_tls { roots(tls)? } else { RootCertStore::empty() })
    };
    match (&tls.cert, &tls.key) {
        (Some(cert), Some(key)) if has_tls => {
            let chain = certificates("cert", cert)?;
            let key =
                PrivateKeyDer::from_pem_slice(&read("key", key)?).map_err(|error| unusable("key", &error))?;
            builder.with_client_auth_cert(chain, key).map_err(|error| unusable("cert and key", &error))
        }
        _ => Ok(builder.with_no_client_auth()),
    }
}

fn roots(tls: &TlsConfig) -> Result<RootCertStore, ScrapeError> {
    let mut roots = RootCertStore::empty();
    if let Some(ca) = &tls.ca {
        for certificate in certificates("ca", ca)? {
            roots.add(certificate).map_err(|error| unusable("ca", &error))?;
        }
    } else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    Ok(roots)
}

fn certificates(what: &str, pem: &Pem) -> Result<Vec<CertificateDer<'static>>, ScrapeError> {
    let bytes = read(what, pem)?;
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&bytes)
        .collect::<Result<_, _>>()
        .map_err(|error| unusable(what, &error))?;
    if certificates.is_empty() {
        return Err(unusable(what, &"it holds no certificate"));
    }
    Ok(certificates)
}

fn read(what: &str, pem: &Pem) -> Result<Vec<u8>, ScrapeError> {
    match pem {
        Pem::Text(text) => Ok(text.as_bytes().to_vec()),
        Pem::File(path) => read_file(what, path),
    }
}

fn unusable(what: &str, reason: &dyn std::fmt::Display) -> ScrapeError {
    ScrapeError::Credentials { what: what.to_owned(), reason: reason.to_string() }
}

/// `insecure_skip_verify`: any certificate, though signatures must still fit it.
#[derive(Debug)]
struct AcceptAny(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAny {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
