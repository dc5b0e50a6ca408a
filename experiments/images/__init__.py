"""Images on disk: folders of classes, decoding, the packed cache, augmentation."""
