"""What one container may have, on one page that it can read and not write. See `layout`."""

from hami_model.limits_page.codec import CardLimits as CardLimits
from hami_model.limits_page.codec import LimitsPage as LimitsPage
from hami_model.limits_page.codec import MalformedLimitsPage as MalformedLimitsPage
from hami_model.limits_page.codec import Word as Word
from hami_model.limits_page.codec import decode as decode
from hami_model.limits_page.codec import encode as encode
from hami_model.limits_page.codec import live_words as live_words
from hami_model.limits_page.codec import same_container as same_container
from hami_model.limits_page.codec import sequence_of as sequence_of
from hami_model.limits_page.layout import Control as Control
from hami_model.limits_page.layout import Policy as Policy
