/* Inside core/media: what a model's processor and extractor made of files. */
#ifndef TENON_CORE_MEDIA_FILES_H
#define TENON_CORE_MEDIA_FILES_H

#include "models/multimodal.h"
#include "pictures/pictures.h"
#include "sounds/sounds.h"

#include <tenon/media.h>

struct tn_media {
    const tn_model *model;
    processed made; /* of pictures, where there are any                                               */
    tn_pictures pictures;
    extracted heard; /* of sounds                                                                      */
    tn_sounds sounds;
};

#endif
