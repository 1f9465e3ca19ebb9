"""What an S3 store's refusals mean: four classes by the code of an error.

Absent (FileNotFoundError), refused (DataError: the user must act, and is told at once), expired credentials
(fresh ones are fetched and the request repeated), and everything else (tried again with growing pauses until
`io_deadline_s` passes, then TemporaryError).
"""

from __future__ import annotations

from mast_ray.config.errors import DataError

EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired", "InvalidToken"}
REFUSED = {
    "NoSuchBucket": "the bucket does not exist at this endpoint",
    "PermanentRedirect": "the bucket lives in another region: set storage.region",
    "AuthorizationHeaderMalformed": "the bucket lives in another region: set storage.region",
    "AccessDenied": "these credentials may not do this here: ask for list, read and write permission",
    "AllAccessDisabled": "access to this bucket is disabled",
    "InvalidAccessKeyId": "the access key is not known here: check credentials and storage.endpoint_url",
    "SignatureDoesNotMatch": "the secret key is wrong: check credentials and storage.endpoint_url",
    "RequestTimeTooSkewed": "this machine's clock is wrong: set it and run again",
    "InvalidBucketName": "this is not a valid bucket name",
    "403": "access denied: check the bucket name, credentials and permissions",
    "Forbidden": "access denied: check the bucket name, credentials and permissions",
    "InvalidObjectState": "the object lies in an archive storage class (Glacier): restore it first, or leave it out with --exclude",
    # what botocore finds wrong before it asks anybody: no pause cures it
    "ParamValidationError": "this is not a valid bucket name or key: check the s3:// address",
    "ProfileNotFound": "AWS_PROFILE names a profile that the AWS config files do not have: correct or unset it",
    "ConfigParseError": "the AWS config file cannot be parsed: correct it, or set AWS_CONFIG_FILE to another",
    "NoRegionError": "no region is known: set storage.region",
    "InvalidRegionError": "storage.region is not the name of a region",
    "InvalidEndpoint": "AWS_ENDPOINT_URL (or endpoint_url of the AWS config file) needs its scheme, e.g. http://127.0.0.1:8333",
}
# what a store says of one object while its neighbours can be read
OF_ONE_OBJECT = {"AccessDenied", "AllAccessDisabled", "403", "Forbidden", "InvalidObjectState"}
ABSENT = {"NoSuchKey", "404", "NotFound"}
UNSAID = {"400", "403", "Bad Request", "Forbidden"}


class Refused(DataError):
    """The store will not do this, whoever asks how often; `code` is its own word for it."""

    def __init__(self, text: str, code: str) -> None:
        super().__init__(text, code)  # both: it must survive the way between processes
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])


def gave_up(verb: str, where: str, code: str, attempts: int) -> str:
    if code in EXPIRED:
        return (
            f"cannot {verb} {where}: the storage credentials have expired ({code}):\n"
            "refresh them and run the same command again"
        )
    return f"cannot {verb} {where} after {attempts} attempts ({code}):\nrun the same command again later"


def error_code(error: Exception) -> str | None:
    """A short name of what went wrong, or None when it is not the store's or the network's doing."""
    import botocore.exceptions as boto
    from s3fs.core import S3_RETRYABLE_ERRORS

    if isinstance(error.__cause__, boto.ClientError):  # s3fs makes an OSError of it; the code is in its cause
        error = error.__cause__
    if isinstance(error, boto.ClientError):
        code = str(error.response.get("Error", {}).get("Code", "")) or "unknown"
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if status == 412:
            return "PreconditionFailed"
        return code
    if isinstance(error, boto.NoCredentialsError | boto.PartialCredentialsError):
        return "NoCredentials"
    is_endpoint = isinstance(error, ValueError) and str(error).startswith("Invalid endpoint")
    if is_endpoint:  # botocore has no name for it
        return "InvalidEndpoint"
    if isinstance(error, (boto.BotoCoreError, ConnectionError, TimeoutError, *S3_RETRYABLE_ERRORS)):
        return type(error).__name__
    return None
