# Rendered by `rlbox render mine` from images/mine/target.toml: edit that file, not this one.
# Build it with `rlbox build mine`, or `docker build` the folder that `rlbox render mine --context FOLDER` makes.
    MINE="1" \
      rlbox.lock="" \
      rlbox.spec="…" \
      rlbox.target="mine"
