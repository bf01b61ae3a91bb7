//! Files whose checksums are made right again after their content was changed, so that what lies behind the checksums
//! is reached. Written from the byte diagrams of the formats, not from the code that reads them.

/// The kinds of files of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Log,
    Segment,
    Manifest,
    Identity,
}

/// Makes the checksums of a file with this number match its content, as far as its structure can be followed.
pub fn reseal(format: Format, number: u64, bytes: &mut [u8]) {
    let _ = match format {
        Format::Log => reseal_log(number, bytes),
        Format::Segment => reseal_segment(number, bytes),
        Format::Manifest => reseal_all(bytes, 0),
        Format::Identity => reseal_identity(number, bytes),
    };
}

fn crc_of(parts: &[&[u8]]) -> [u8; 4] {
    parts.iter().fold(0, |crc, part| crc32c::crc32c_append(crc, part)).to_le_bytes()
}

fn u32_at(bytes: &[u8], at: usize) -> Option<usize> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize)
}

/// The last four bytes are the checksum of those before, from `from` on.
fn reseal_all(bytes: &mut [u8], from: usize) -> Option<()> {
    let end = bytes.len().checked_sub(4).filter(|&end| end >= from)?;
    let crc = crc_of(&[&bytes[from..end]]);
    bytes[end..].copy_from_slice(&crc);
    Some(())
}

const LOG_HEADER_BYTES: usize = 36;
const LOG_FRAME_BYTES: usize = 17;

fn reseal_log(number: u64, bytes: &mut [u8]) -> Option<()> {
    reseal_all(bytes.get_mut(..LOG_HEADER_BYTES)?, 0)?;
    let mut at = LOG_HEADER_BYTES;
    loop {
        let length = u32_at(bytes, at)?;
        let end = at.checked_add(LOG_FRAME_BYTES)?.checked_add(length)?;
        let frame = bytes.get_mut(at..end)?;
        // Number, length, durable bytes, kind and body.
        let crc = crc_of(&[&number.to_le_bytes(), &frame[..4], &frame[8..]]);
        frame[4..8].copy_from_slice(&crc);
        at = end;
    }
}

const IDENTITY_HEADER_BYTES: usize = 20;

fn reseal_identity(number: u64, bytes: &mut [u8]) -> Option<()> {
    reseal_all(bytes.get_mut(..IDENTITY_HEADER_BYTES)?, 0)?;
    let mut at = IDENTITY_HEADER_BYTES;
    loop {
        let end = at.checked_add(8)?.checked_add(u32_at(bytes, at)?)?;
        let frame = bytes.get_mut(at..end)?;
        let crc = crc_of(&[&number.to_le_bytes(), &frame[8..]]);
        frame[4..8].copy_from_slice(&crc);
        at = end;
    }
}

const SEGMENT_HEADER_BYTES: usize = 20;
const SEGMENT_FOOTER_BYTES: usize = 24;

fn reseal_segment(number: u64, bytes: &mut [u8]) -> Option<()> {
    reseal_all(bytes.get_mut(..SEGMENT_HEADER_BYTES)?, 0)?;
    let footer = bytes.len().checked_sub(SEGMENT_FOOTER_BYTES)?;
    let offset = usize::try_from(u64::from_le_bytes(bytes[footer..footer + 8].try_into().ok()?)).ok()?;
    let index_end = offset.checked_add(u32_at(bytes, footer + 8)?)?;
    let index_crc = crc_at(number, offset, bytes.get(offset..index_end)?);
    bytes[footer + 12..footer + 16].copy_from_slice(&index_crc);
    reseal_all(&mut bytes[footer..], 0)?;
    for block in segment_blocks(&bytes[offset..index_end])? {
        let content = bytes.get_mut(block.clone()).filter(|content| content.len() >= 4)?;
        let crc = crc_at(number, block.start, &content[4..]);
        content[..4].copy_from_slice(&crc);
    }
    Some(())
}

/// Checksum of a block or an index.
fn crc_at(number: u64, offset: usize, content: &[u8]) -> [u8; 4] {
    crc_of(&[&number.to_le_bytes(), &(offset as u64).to_le_bytes(), content])
}

/// Where the blocks are that an index names.
fn segment_blocks(index: &[u8]) -> Option<Vec<std::ops::Range<usize>>> {
    let mut rest = index;
    let mut next = || -> Option<usize> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, after) = rest.split_first()?;
            rest = after;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return usize::try_from(value).ok();
            }
        }
        None
    };
    // Origin: place, log floor, segments replaced; then times, samples.
    let (_place, _floor, replaced) = (next()?, next()?, next()?);
    for _ in 0..replaced + 3 {
        next()?;
    }
    let mut blocks = Vec::new();
    for _ in 0..2 {
        let (count, mut offset) = (next()?, 0usize);
        for _ in 0..count {
            next()?;
            offset = offset.checked_add(next()?)?;
            blocks.push(offset..offset.checked_add(next()?)?);
        }
    }
    Some(blocks)
}
