mod reaction;
mod settings;
