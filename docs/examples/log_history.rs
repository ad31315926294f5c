// A writer of histories in Rust, with the standard library alone.
use std::fs::File;
use std::io::{BufWriter, Result, Write};

pub struct History(BufWriter<File>);

impl History {
    pub fn open(path: &str, num_blocks: u32, block_size: u32) -> Result<Self> {
        let mut file = BufWriter::new(File::create(path)?);
        writeln!(
            file,
            r#"{{"event":"open","schema":"kvref-history/1","num_blocks":{num_blocks},"block_size":{block_size}}}"#
        )?;
        Ok(Self(file))
    }

    pub fn request(&mut self, id: u64, tokens: &[u32]) -> Result<()> {
        writeln!(self.0, r#"{{"event":"request","request":{id},"tokens":{tokens:?}}}"#)
    }

    pub fn allocate(&mut self, id: u64, blocks: &[u32]) -> Result<()> {
        writeln!(self.0, r#"{{"event":"allocate","request":{id},"blocks":{blocks:?}}}"#)
    }

    pub fn hit(&mut self, id: u64, num_tokens: u32, blocks: &[u32]) -> Result<()> {
        writeln!(
            self.0,
            r#"{{"event":"hit","request":{id},"count":{num_tokens},"blocks":{blocks:?}}}"#
        )
    }

    pub fn compute(&mut self, ids: &[u64], starts: &[u32], counts: &[u32]) -> Result<()> {
        writeln!(
            self.0,
            r#"{{"event":"compute","requests":{ids:?},"starts":{starts:?},"counts":{counts:?}}}"#
        )
    }

    pub fn decode(&mut self, ids: &[u64], tokens: &[u32]) -> Result<()> {
        writeln!(self.0, r#"{{"event":"decode","requests":{ids:?},"tokens":{tokens:?}}}"#)
    }

    pub fn publish(&mut self, blocks: &[u32]) -> Result<()> {
        writeln!(self.0, r#"{{"event":"publish","blocks":{blocks:?}}}"#)
    }

    pub fn free(&mut self, id: u64, blocks: &[u32]) -> Result<()> {
        writeln!(self.0, r#"{{"event":"free","request":{id},"blocks":{blocks:?}}}"#)
    }

    pub fn finish(&mut self, id: u64) -> Result<()> {
        writeln!(self.0, r#"{{"event":"finish","request":{id}}}"#)
    }

    pub fn close(mut self, num_free: u32) -> Result<()> {
        writeln!(self.0, r#"{{"event":"close","num_free":{num_free}}}"#)?;
        self.0.flush()
    }
}

fn main() -> Result<()> {
    let path = std::env::args().nth(1).expect("a path");
    let mut log = History::open(&path, 8, 4)?;
    log.request(1, &[11, 12, 13, 14, 15, 16])?;
    log.allocate(1, &[5, 2])?;
    log.compute(&[1], &[0], &[6])?;
    log.publish(&[5])?;
    log.request(2, &[11, 12, 13, 14, 15, 16])?;
    log.hit(2, 4, &[5])?; // four tokens, one block
    log.allocate(2, &[7])?;
    log.decode(&[1], &[21])?;
    log.compute(&[1, 2], &[6, 4], &[1, 2])?;
    for (id, blocks) in [(1, [2, 5]), (2, [7, 5])] {
        log.finish(id)?;
        log.free(id, &blocks)?;
    }
    log.close(8)
}
