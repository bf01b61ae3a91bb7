//! HTTP as all endpoints share it: the listeners, bodies left unread, parameters, answers, compression, CORS.
pub mod layers;
pub mod listener;
pub mod params;
pub mod reply;
pub mod unread;
