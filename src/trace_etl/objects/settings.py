"""Settings of every process that uses the object store."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings

from trace_etl.objects.opening import open_store
from trace_etl.objects.s3_options import S3Options
from trace_etl.objects.store import ObjectStore

_REMOVED = {
    "object_scheme": "file:///var/lib/trace/objects",
    "objects_root": "file:///var/lib/trace/objects",
    "object_bucket": "s3://bucket/prefix",
}


def explain_shared_keys(url: str, role_arn: str | None, spark_master: str) -> str | None:
    """Return why operators use the keys of the stack for S3. None: each task has credentials of its own."""
    if not url.startswith("s3://"):
        return None
    if role_arn is None:
        return "TRACE_CREDENTIALS_ROLE_ARN is not set"
    if not spark_master.startswith("local"):
        return f"the executors of {spark_master} cannot read the files with credentials of a task"
    return None


class ObjectsSettings(BaseSettings):
    """The URL of the object store, and how S3 is used. The settings that it replaced are rejected."""

    objects_url: str
    """The object store: `file:///var/lib/trace/objects` or `s3://bucket/prefix`.

    `{org_id}` in a bucket or prefix gives each organisation one of its own.
    """
    s3_region: str | None = None
    """The region of the bucket. Default: `AWS_REGION`, or `us-east-1`."""
    s3_endpoint: str | None = Field(None, pattern=r"^https?://[^/@?#]+$")
    """The server, for example `https://minio.example:9000`. Default: AWS."""
    aws_endpoint_url: str | None = Field(None, validation_alias="AWS_ENDPOINT_URL")
    """The server if `s3_endpoint` is not set, as for other clients of AWS."""
    s3_path_style: bool | None = None
    """Put the bucket into the path instead of the host name. Default: true if an endpoint is set."""
    s3_encryption: Literal["AES256", "aws:kms"] | None = None
    """Server-side encryption of new objects. Default: as the bucket is configured."""
    s3_kms_key_id: str | None = None
    """The key for `aws:kms`. Default: the key of the bucket."""
    s3_credentials_file: Path | None = None
    """A credentials file of the AWS tools. Default: the environment or the role of the machine."""
    s3_profile: str = "default"
    """The section of the credentials file."""
    s3_ca_file: Path | None = None
    """Certificates (PEM) of a private authority that signed the certificate of the endpoint."""
    object_scheme: None = None
    """Removed."""
    objects_root: None = None
    """Removed."""
    object_bucket: None = None
    """Removed."""

    @model_validator(mode="before")
    @classmethod
    def _reject_removed(cls, values: dict[str, Any]) -> dict[str, Any]:
        for name, example in _REMOVED.items():
            if values.get(name) is not None:
                raise ValueError(
                    f"TRACE_{name.upper()} is no longer a setting: unset it, and set "
                    f"TRACE_OBJECTS_URL instead, for example {example}"
                )
        return values

    @model_validator(mode="after")
    def _check_encryption(self) -> Self:
        if self.s3_kms_key_id is not None and self.s3_encryption != "aws:kms":
            raise ValueError(
                "TRACE_S3_KMS_KEY_ID is set without TRACE_S3_ENCRYPTION=aws:kms; set that, too"
            )
        return self

    def open_objects(self) -> ObjectStore:
        """Open the object store. Raises UnsupportedStore."""
        is_path_style = self.s3_path_style
        return open_store(
            self.objects_url,
            S3Options(
                region=self.s3_region,
                endpoint=self.s3_endpoint or self.aws_endpoint_url,
                path_style=bool(self.s3_endpoint) if is_path_style is None else is_path_style,
                encryption=self.s3_encryption,
                kms_key_id=self.s3_kms_key_id,
                credentials_file=self.s3_credentials_file,
                profile=self.s3_profile,
                ca_file=self.s3_ca_file,
            ),
        )
